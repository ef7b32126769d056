"""`python -m mnemoscope.bench`: a random model's figures as JSON, where only torch and transformers are installed.

`mnemoscope bench` is the same with all its dependencies, and reads text too.
"""

import argparse
import json
import sys

from mnemoscope.bench.loops import WARM
from mnemoscope.bench.shapes import SHAPES, measure_shape
from mnemoscope.errors import MnemoscopeError
from mnemoscope.foundation.mining_options import AUTO, DTYPES
from mnemoscope.models import device_of


def main() -> int:
    """Prints one JSON document; 2 for what cannot be measured here."""
    parser = argparse.ArgumentParser(prog="python -m mnemoscope.bench", description="How fast mining is on a device.")
    parser.add_argument("--model", choices=SHAPES, default="8b")
    parser.add_argument("--device", default=AUTO)
    parser.add_argument("--dtype", choices=DTYPES, help="the shape's usual one if left out")
    parser.add_argument("--rounds", type=int, default=3, help="groups of four batches that are timed")
    parser.add_argument("--warm", type=int, default=WARM, help="tokens mined before anything is timed")
    parser.add_argument("--batch-tokens", type=int, help="positions in a batch; what mine would take if left out")
    parser.add_argument("--layers", type=int, help="only so many layers of the shape")
    given = parser.parse_args()
    name = "n_layer" if given.model == "gpt2-small" else "num_hidden_layers"
    sizes = {} if given.layers is None else {name: given.layers}
    try:
        found = measure_shape(
            given.model, device=device_of(given.device), dtype=given.dtype, rounds=given.rounds, warm=given.warm,
            batch_tokens=given.batch_tokens, sizes=sizes,
        )  # fmt: skip
    except MnemoscopeError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
