"""Time the steps of `attribute` on one prompt: seconds of the second of two runs, after the model's proof; prints JSON.

python benchmarks/attribution.py MODEL ["PROMPT"]
"""

import json
import sys
import time

import mnemoscope as ms
from mnemoscope.attribution import Attributor
from mnemoscope.attribution.contrast import choose_contrast


def main() -> None:
    model = ms.load_model(sys.argv[1], device="cpu")
    prompt = sys.argv[2] if len(sys.argv) > 2 else "The first thing that the old man saw in the"
    times: dict[str, float] = {"tokens": len(model.encode([prompt])[0])}
    for _ in range(2):
        with model.in_use(), model.lock:
            asked = Attributor(model, choose_contrast(model, prompt, target=None, against=None))
            for step, names in {
                "direct effects": ["effects"],
                "attributions": ["attributions"],
                "ablations": ["singles", "spearman"],
                "curves": ["curve", "with_a_share"],
            }.items():
                began = time.perf_counter()
                for name in names:
                    getattr(asked, name)
                times[step] = round(time.perf_counter() - began, 2)
    print(json.dumps(times))


if __name__ == "__main__":
    main()
