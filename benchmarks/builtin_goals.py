"""Whether a trained model's memories show what the paper shows: `python benchmarks/builtin_goals.py FOLDER`.

FOLDER is what `runs/builtin.sh` leaves: `model/` with its training.json, and `atlas/`, mined from the demo's text and
answered. Prints a line per goal, with the number that decides it, and the numbers of every layer as a Markdown table.
"""

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path

from mnemoscope import Atlas, open_atlas
from mnemoscope.foundation.formatting import percent
from mnemoscope.questions.answers import stored_answers
from mnemoscope.questions.question import Answer

LARGEST = 17_000_000
"""Bytes of the weights."""
FIVE_GRAM = 1.0675
"""Nats per byte of a 5-gram model (interpolated Kneser-Ney) of the same training tokens, measured once."""


def layer_shares(atlas: Atlas, answers: Mapping[str, Answer]) -> dict[str, list[float]]:
    """What the answers say of every layer, by name; and the share of its memories that never fire."""
    asked = {
        "agreement": ("value_agreement", "agreement"),
        "typical >= 0.1": ("value_confidence", "working_confident"),
        "largest typical": ("value_confidence", "working_probability_best"),
        "fire": ("layer_activity", "active"),
        "effective": ("layer_activity", "effective"),
        "no memory says it": ("layer_composition", "zero_agreement"),
        "already said": ("refinement_match", "match"),
    }
    found = {name: [row.value for row in answers[question].rows(number)] for name, (question, number) in asked.items()}
    fired = [atlas.table("activity", layer=layer)["positive"].to_numpy() for layer in atlas.layers]
    return found | {"never": [float((positive == 0).mean()) for positive in fired]}


def goals(model: Path, answers: Mapping[str, Answer], layers: dict[str, list[float]]) -> list[tuple[str, str, bool]]:
    """Each goal, the numbers that decide it, and whether it is reached."""
    said = json.loads((model / "training.json").read_text())
    agreement, depth = layers["agreement"], len(layers["agreement"])
    upper, lower = agreement[math.ceil(2 * depth / 3) :], agreement[: depth // 2]
    above, below = sum(upper) / len(upper), sum(lower) / len(lower)
    overall, frequent = (answers["value_agreement"].total(name) for name in ("agreement", "most_frequent_token"))
    confident = answers["value_confidence"].total("working_confident")
    size = (model / "model.safetensors").stat().st_size
    assert overall is not None
    assert frequent is not None
    assert confident is not None
    own = said["nats_per_byte"]
    return [
        ("agreement in the upper third >= 5 %", percent(above), above >= 0.05),
        ("... and twice the lower half's", f"{percent(above)} to {percent(below)}", above >= 2 * below),
        ("over all layers above one guess", f"{overall.text} to {frequent.text}", overall.value > frequent.value),
        ("values with 0.1 or more at typical activation >= 2 %", confident.text, confident.value >= 0.02),
        ("never fire, in any layer <= 5 %", percent(max(layers["never"])), max(layers["never"]) <= 0.05),
        ("nats per byte below the 5-gram's", f"{own} to {FIVE_GRAM}", own < FIVE_GRAM),
        ("weights <= 17 MB", f"{size / 1e6:.1f} MB", size <= LARGEST),
    ]


def main() -> None:
    """Prints the goals and the table."""
    folder = Path(sys.argv[1])
    atlas = open_atlas(folder / "atlas")
    answers = stored_answers(atlas)
    layers = layer_shares(atlas, answers)
    for goal, numbers, reached in goals(folder / "model", answers, layers):
        print(f"{'reached' if reached else 'MISSED '}  {goal}: {numbers}")
    print(f"\n| layer | {' | '.join(layers)} |\n|{'---|' * (len(layers) + 1)}")
    for layer, numbers in enumerate(zip(*layers.values(), strict=True)):
        cells = [f"{n:.1f}" if name == "effective" else percent(n) for name, n in zip(layers, numbers, strict=True)]
        print(f"| {layer} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
