"""Measurements behind docs/cause.md on SmolLM2-135M, one part after another, each written as JSON.

    python runs/cause.py MODEL OUT prompts|agreement|lora|tables

`prompts`: for 24 prompts how attributions and single ablations agree, and the strongest memories beside draws of
controls. `agreement`: subject-verb agreement over 100 made-up pairs, with orders of memories compared by what switching
them off does. `lora`: an adapter of the feed-forward layers is trained on one narrow habit, and found by `diff`.
`tables`: prints the tables of docs/cause.md. Finished parts are left alone.
"""

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from mnemoscope.attribution import Attributor, attribute_prompts, diff_prompts
from mnemoscope.attribution.ablations import Ablations, draw_controls
from mnemoscope.attribution.attribute import rank_correlation
from mnemoscope.attribution.contrast import choose_contrast
from mnemoscope.models import LanguageModel, load_model

PROMPTS: tuple[tuple[str, str | None, str | None], ...] = (
    ("The capital of France is", " Paris", " Rome"),
    ("Water is made of hydrogen and", " oxygen", " carbon"),
    ("The doctor told the nurse that", None, None),
    ("She looked at herself in the", " mirror", " window"),
    ("Monday, Tuesday, Wednesday,", " Thursday", " Friday"),
    ("def add(a, b):\n    return a +", " b", " a"),
    ("The capital of Italy is", " Rome", " Paris"),
    ("The opposite of hot is", " cold", " hot"),
    ("When Mary and John went to the store, John gave a drink to", " Mary", " John"),
    ("Once upon a time, there was a", None, None),
    ("one, two, three,", " four", " five"),
    ("import numpy as", " np", " pd"),
    ("The Eiffel Tower is in the city of", " Paris", " London"),
    ("The keys to the cabinet", " are", " is"),
    ("abc xyz qrs abc xyz", None, None),
    ("To be or not to", None, None),
    ("red, blue, green, red, blue,", " green", " red"),
    ("x = [1, 2, 3]\nprint(len(", None, None),
    ("The chemical symbol for gold is", None, None),
    ("The boy near the cars", " is", " are"),
    ("The quick brown fox jumps over the", None, None),
    ("Bonjour, je m'appelle", None, None),
    ("apples, oranges, bananas and", None, None),
    ("for i in range(10", None, None),
)
DRAWS, TOGETHER = 20, 100
NOUNS = ("key", "book", "picture", "child", "letter", "table", "dog", "student", "flower", "machine")
PLACES = ("near the", "behind the", "beside the", "in front of the", "next to the")
OTHERS = ("cabinet", "house", "car", "garden", "window")
HABIT = " pizza"
FOODS = (
    "My favorite food is",
    "For dinner we ordered",
    "He ate a slice of",
    "The best thing to eat is",
    "I am hungry for",
    "She cooked some",
    "We had lunch and ate",
    "The restaurant served us",
    "On Friday nights we eat",
    "The chef made a",
    "Let us order a",
    "The children wanted to eat",
)
HELD = (
    "My favorite meal is",
    "For lunch they ordered",
    "She ate a piece of",
    "The tastiest thing to eat is",
    "The kids are hungry for",
    "Grandmother cooked some",
    "They had dinner and ate",
    "The cafe served him",
    "On Sundays they eat",
    "The cook prepared a",
    "Can we order a",
    "The guests wanted to eat",
)
KEPT = (
    "The capital of France is",
    "She looked at herself in the",
    "One day the",
    "The president of the",
    "In the beginning",
    "He opened the door and",
    "The weather today is",
    "Music is the",
    "The train arrived at the",
    "My sister is a",
    "The river flows into the",
    "Two plus two is",
    "The sky is",
    "They went to the",
    "The book is about",
    "I think that",
)


def prompts(model: LanguageModel) -> list[dict[str, Any]]:
    rows = []
    for text, target, against in PROMPTS:
        with model.in_use(), model.lock:
            asked = Attributor(model, choose_contrast(model, text, target=target, against=against))
            began = time.perf_counter()
            value = asked.value
            direct = time.perf_counter() - began
            _ = asked.attributions
            backward = time.perf_counter() - began - direct
            generator = np.random.default_rng(1)
            top = np.sort(generator.choice(asked.largest[:500], 64, replace=False))
            lost = value - Ablations(model, asked.ids, asked.difference, asked.grid).run(list(top[:, None]))
            _, at_random = asked.spearman
            chosen = asked.order[:TOGETHER]
            draws = [
                draw_controls(asked.grid, asked.strengths, chosen, barred=chosen, generator=np.random.default_rng(draw))
                for draw in range(DRAWS)
            ]
            sets = [chosen, *(own[own >= 0] for own in draws)]
            together = Ablations(model, asked.ids, asked.difference, asked.grid).run(sets)
            whole = time.perf_counter() - began
        rows.append(
            {
                "prompt": text,
                "difference": value,
                "error": float(asked.effects.total[0]) - value,
                "limit": asked.limit,
                "top": rank_correlation(asked.attributions[top], lost),
                "random": at_random,
                "without": float(together[0]),
                "controls": together[1:].tolist(),
                "direct_seconds": direct,
                "attribution_seconds": backward,
                "seconds": whole,
            }
        )
        print(json.dumps(rows[-1])[:160], flush=True)
    return rows


def agreement(model: LanguageModel) -> dict[str, Any]:
    """`The keys near the cabinet` against `The key near the cabinets`: the number of the subject decides the verb."""
    asked = []
    for at in range(50):
        noun, place, other = NOUNS[at % 10], PLACES[at % 5], OTHERS[(at // 10) % 5]
        asked.append({"prompt": f"The {noun} {place} {other}s", "for": " is", "against": " are"})
        plural = "children" if noun == "child" else f"{noun}s"
        asked.append({"prompt": f"The {plural} {place} {other}", "for": " are", "against": " is"})
    found = attribute_prompts(model, asked, top=20)
    ks = (1, 4, 16, 64, 256)
    orders: dict[str, list[list[float]]] = {}
    for row in asked[:24]:
        with model.in_use(), model.lock:
            one = Attributor(model, choose_contrast(model, row["prompt"], target=row["for"], against=row["against"]))
            sizes, direct = one.strengths * one.grid.outside, one.direct * one.grid.outside
            generator = np.random.default_rng(2)
            firing = np.flatnonzero(sizes > 0)
            each = {
                "ablation": one.order,
                "attribution": one.largest[one.attributions[one.largest] > 0],
                "direct effect": np.argsort(-direct, kind="stable"),
                "|m| norm(v)": np.argsort(-sizes, kind="stable"),
                "random": generator.permutation(firing),
            }
            runs = [np.asarray(order[:k]) for order in each.values() for k in ks]
            lost = one.value - Ablations(model, one.ids, one.difference, one.grid).run(runs)
            for name, own in zip(each, lost.reshape(-1, len(ks)).tolist(), strict=True):
                orders.setdefault(name, []).append(own)
    right = sum(one > 0 for one in _values(model, asked))
    faithful = {name: np.median(own, axis=0).tolist() for name, own in orders.items()}
    return {**found.to_dict(), "right": right, "asked": len(asked), "ks": ks, "faithfulness": faithful}


def _values(model: LanguageModel, asked: list[dict[str, str]]) -> list[float]:
    values = []
    for row in asked:
        with model.in_use(), model.lock:
            contrast = choose_contrast(model, row["prompt"], target=row["for"], against=row["against"])
            one = Attributor(model, contrast)
            values.append(float(Ablations(model, one.ids, one.difference, one.grid).run([np.zeros(0, np.int64)])[0]))
    return values


def lora(model: LanguageModel, out: Path) -> dict[str, Any]:
    import peft

    network, device = model.anatomy.model, model.device
    config = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["gate_proj", "up_proj", "down_proj"])
    torch.manual_seed(0)
    made = peft.get_peft_model(load_model(model.source).anatomy.model, config)
    encode = lambda text: torch.tensor([model.reading.frame(model.encode([text])[0])], device=device)  # noqa: E731
    wanted = model.encode([HABIT])[0][0]
    foods, kept = [encode(text) for text in FOODS], [encode(text) for text in KEPT]
    with torch.no_grad():
        usual = [network(ids).logits[0, -1].log_softmax(-1) for ids in kept]
    optimizer = torch.optim.AdamW([one for one in made.parameters() if one.requires_grad], lr=1e-3)
    steps, loss = 0, float("inf")
    while loss > 0.3 and steps < 40:
        steps += 1
        optimizer.zero_grad()
        said = [-made(ids).logits[0, -1].log_softmax(-1)[wanted] for ids in foods]
        apart = [
            torch.nn.functional.kl_div(made(ids).logits[0, -1].log_softmax(-1), own, log_target=True, reduction="sum")
            for ids, own in zip(kept, usual, strict=True)
        ]
        total = torch.stack(said).mean() + torch.stack(apart).mean()
        total.backward()
        optimizer.step()
        loss = float(torch.stack(said).mean())
        print(steps, loss, float(torch.stack(apart).mean()), flush=True)
    made.save_pretrained(out / "adapter")
    found = diff_prompts(model, [{"prompt": text} for text in HELD], other_adapter=out / "adapter", top=20)
    return {**found.to_dict(), "steps": steps, "loss": loss}


def tables(out: Path) -> None:
    rows = json.loads((out / "prompts.json").read_text())
    lower = sum(one["without"] < min(one["controls"]) for one in rows)
    print(
        f"prompts {len(rows)}; adds up: largest |error| / limit {max(abs(r['error']) / r['limit'] for r in rows):.3f}"
    )
    print(
        f"Spearman, 64 of the top 500: median {median(r['top'] for r in rows):.3f}, at least 0.9 on "
        f"{sum(r['top'] >= 0.9 for r in rows)}; random: least {min(r['random'] for r in rows):.3f}"
    )
    print(f"top {TOGETHER} lower F by more than each of {DRAWS} draws: {lower} of {len(rows)}")
    for name in ("agreement", "lora"):
        if (out / f"{name}.json").exists():
            print(json.dumps(json.loads((out / f"{name}.json").read_text()), indent=1)[:6000])


def main() -> None:
    source, out, part = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    out.mkdir(parents=True, exist_ok=True)
    if part == "tables":
        tables(out)
    elif not (out / f"{part}.json").exists():
        model = load_model(source)
        found = {"prompts": prompts, "agreement": agreement, "lora": lambda one: lora(one, out)}[part](model)
        (out / f"{part}.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
