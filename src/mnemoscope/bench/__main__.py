"""`python -m mnemoscope.bench`: a random model's figures as JSON, with only torch and transformers installed.

`mnemoscope bench` does the same with all dependencies, and also reads text.
"""

import argparse
import json
import sys

from mnemoscope.bench.loops import WARM
from mnemoscope.bench.shapes import SHAPES, measure_shape
from mnemoscope.errors import MnemoscopeError
from mnemoscope.foundation.options.mining_options import AUTO, DTYPES
from mnemoscope.models import device_of


def main() -> int:
    """Prints one JSON document; returns 2 if the measurement is impossible here."""
    parser = argparse.ArgumentParser(prog="python -m mnemoscope.bench", description="How fast mining is on a device.")
    parser.add_argument("--model", choices=SHAPES, default="8b")
    parser.add_argument("--device", default=AUTO)
    parser.add_argument("--dtype", choices=DTYPES, help="the shape's usual one if left out")
    parser.add_argument("--rounds", type=int, default=3, help="groups of four batches that are timed")
    parser.add_argument("--warm", type=int, default=WARM, help="tokens mined before anything is timed")
    parser.add_argument("--batch-tokens", type=int, help="positions in a batch; what mine would take if left out")
    parser.add_argument("--layers", type=int, help="only so many layers of the shape")
    args = parser.parse_args()
    name = "n_layer" if args.model == "gpt2-small" else "num_hidden_layers"
    sizes = {} if args.layers is None else {name: args.layers}
    try:
        figures = measure_shape(
            args.model, device=device_of(args.device), dtype=args.dtype, rounds=args.rounds, warm=args.warm,
            batch_tokens=args.batch_tokens, sizes=sizes,
        )  # fmt: skip
    except MnemoscopeError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
