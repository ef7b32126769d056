"""How fast mining is, against the bare forward pass and two common loops in one run; prints JSON.

    python benchmarks/mining_speed.py --model builtin|gpt2-small|bert-base|8b|experts|SPEC

Only ratios count: absolute speeds differ from machine to machine. The bare forward pass is timed whole, and stopped
where mining stops, which is equal work. A model reads the standard library's documentation, and its value pass is
measured, too; 8b (16 GB in bfloat16), experts, bert-base, and with --random-text GPT-2's shape, read random tokens,
for which torch and transformers are enough (`PYTHONPATH=src`).
"""

import argparse
import json
import sys

from speed.loops import WARM
from speed.shapes import SHAPES, measure_shape

from mnemoscope.errors import MnemoscopeError
from mnemoscope.foundation.options.mining_options import AUTO, DTYPES
from mnemoscope.models import device_of


def main() -> int:
    """Prints one JSON document; returns 2 if the measurement is impossible here."""
    parser = argparse.ArgumentParser(description="How fast mining is.")
    parser.add_argument(
        "--model", default="builtin", help="a model as in mine, builtin, gpt2-small, bert-base, 8b or experts"
    )
    parser.add_argument("--random-text", action="store_true", help="random tokens for gpt2-small, too")
    parser.add_argument("--device", default=AUTO)
    parser.add_argument("--dtype", choices=DTYPES, help="default: float32; of 8b bfloat16")
    parser.add_argument("--rounds", type=int, default=10, help="groups of four batches that are timed")
    parser.add_argument("--warm", type=int, default=WARM, help="tokens mined before anything is timed")
    parser.add_argument("--batch-tokens", type=int, help="of random text: positions in a batch; default: as mine")
    parser.add_argument("--layers", type=int, help="of random text: only so many layers of the shape")
    args = parser.parse_args()
    try:
        device = device_of(args.device)
        if args.model in ("bert-base", "8b", "experts") or (args.random_text and args.model in SHAPES):
            name = "n_layer" if args.model == "gpt2-small" else "num_hidden_layers"
            figures = measure_shape(
                args.model,
                device=device,
                dtype=args.dtype,
                rounds=args.rounds,
                warm=args.warm,
                batch_tokens=args.batch_tokens,
                sizes={} if args.layers is None else {name: args.layers},
            )
        else:
            from speed.documentation import measure_text

            dtype = args.dtype or "float32"
            figures = measure_text(args.model, device=device, dtype=dtype, rounds=args.rounds, warm=args.warm)
    except MnemoscopeError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
