"""Measure the passes that answer for the paper's questions on a GPT-2-small-shaped model: seconds and resident memory.

The model is random (12 layers of 3,072 memories, vocabulary 50,257). A little of TEXT is mined, so that there are
triggers and values; then 4,000 prefixes of the validation text are asked in every layer, and tokens are removed from
the triggers of 10 memories per layer. The bar for predictions: under 6 minutes on 2 cores, the process under 4 GB; for
attention: at most 1.5 times the predictions' seconds, of the same run. At last ridge lenses are fitted on TEXT, each
batch beside its bare forward: at most 1.2 times.

    python benchmarks/questions.py TEXT VALIDATION
"""

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from speed.shapes import random_model

from mnemoscope.atlas import open_atlas
from mnemoscope.mining import mine
from mnemoscope.mining.lenses.lens_pass import LensText, read_streams
from mnemoscope.mining.lenses.ridge import RidgeFit
from mnemoscope.models import LanguageModel
from mnemoscope.models.forward.batches import pad
from mnemoscope.runs.plan import MiningPlan


def main() -> None:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description="How long the questions' passes take.")
    parser.add_argument("text")
    parser.add_argument("validation")
    parser.add_argument("--max-tokens", type=int, default=20_000)
    parser.add_argument("--prefixes", type=int, default=4_000)
    parser.add_argument("--removals", type=int, default=10)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mnemoscope-") as folder:
        model = random_model("gpt2-small")
        atlas = mine(
            model,
            given.text,
            out=Path(folder) / "atlas",
            validation=given.validation,
            max_tokens=given.max_tokens,
            prefixes=given.prefixes,
            removals=given.removals,
        )
        seconds = json.loads((atlas / "run.json").read_text())["seconds"]
        manifest = json.loads((atlas / "manifest.json").read_text())
        fitting = time_ridge(model, atlas)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    ratio = seconds["attention"] / seconds["predictions"]
    found = {"attention_of_predictions": round(ratio, 2), "ridge_of_forward": fitting, "peak_mb": round(peak)}
    print(json.dumps(found | {"seconds": seconds, "asked": manifest["questions"]}, indent=1))


def time_ridge(model: LanguageModel, atlas: Path) -> float:
    """Seconds of reading all streams and adding them up, over those of the bare forwards; batches alternate."""
    plan = MiningPlan.from_document(open_atlas(atlas).manifest.plan, atlas)
    text, fit = LensText(atlas, area=plan.batch_tokens, seed=0, most=10_000), RidgeFit(model, plan.layers)
    seconds = {"bare": 0.0, "fit": 0.0}
    for batch in text.batches:
        for kind in seconds:
            begun = time.perf_counter()
            if kind == "bare":
                with torch.inference_mode():
                    model.backbone(pad(batch.rows, model))
            else:
                streams, final = read_streams(model, batch.rows, plan.layers)
                fit.add(np.concatenate(batch.rows), streams, final, judged=batch.judged)
            seconds[kind] += time.perf_counter() - begun
    return round(seconds["fit"] / seconds["bare"], 2)


if __name__ == "__main__":
    main()
