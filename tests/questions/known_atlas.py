"""The atlas of the model whose every number is known, and exact comparison of its answers; not a test itself.

Holds the texts, chosen so that what fires and what follows can be read off them, and patterns set by hand: what finds
patterns has tests of its own. The tests beside this file hold the working.
"""

import math
from fractions import Fraction
from pathlib import Path

import polars as pl

from mnemoscope.atlas import open_atlas
from mnemoscope.atlas.store import write_table
from mnemoscope.mining import mine
from mnemoscope.models import load_model
from mnemoscope.questions import answer
from questions.known_model import MEMORIES, WORDS, Known, build

Expected = list[Fraction | float | None]

MINED = (
    *("the cat sat", "of cat ran", "cat the", "mat bird far", "the dog mat", "bird dog of"),
    *("of bird mat", "cat bird", "the cat far", "mat sat", "ran sat", "far sat"),
)
# Ten prefixes: C four times, D twice, B twice (20 or 28 birds), E twice. All but B's are the first of two words.
VALIDATION = (
    *("cat sat", "cat ran", "cat of", "cat far", "dog ran", "dog the"),
    *("bird " * 20 + "mat", "bird " * 28 + "mat", "of the", "of cat"),
)
C, D, B, E = 4, 2, 2, 2
SEED = 0  # draws both positions among the birds behind the fourth

# Sentences whose triggers a pattern holds; a prefix that occurs again ("the cat", "cat") is held with the other.
PATTERNS = (
    *((0, 0, "shallow", (0, 1, 2, 7, 8)), (0, 1, "shallow", (0, 4, 8)), (0, 1, "semantic", (0, 1, 2))),
    *((0, 3, "shallow", (3, 5, 6, 7)), (0, 3, "shallow", (3, 6, 7))),
    *((1, 0, "semantic", (3, 6, 7)), (1, 2, "semantic", (0, 1, 2)), (1, 3, "shallow", (0, 2, 7))),
    *((2, 0, "semantic", (0, 1, 8)), (2, 2, "semantic", (3, 5, 6, 7)), (2, 2, "shallow", (3, 6, 7))),
)


def mined(directory: Path, memories: tuple[tuple[Known, ...], ...] = MEMORIES, *, activation: str = "relu") -> Path:
    """The atlas of a model of these memories, with `PATTERNS` where they fit."""
    hf, tokenizer = build(memories, activation=activation)
    (directory / "mined.txt").write_text("\n".join(MINED) + "\n")
    (directory / "other.txt").write_text("\n".join(VALIDATION) + "\n")
    out = mine(
        load_model(hf, tokenizer=tokenizer), directory / "mined.txt", out=directory / "atlas", split="line",
        validation=directory / "other.txt", removals="all", seed=SEED,
    )  # fmt: skip
    atlas = open_atlas(out)
    columns: dict[str, list[object]] = {name: [] for name in ("layer", "memory", "pattern", "kind", "triggers")}
    for number, (layer, memory, kind, sentences) in enumerate(PATTERNS):
        if layer in atlas.layers:
            rows = atlas.table("triggers", layer=layer).filter((pl.col("memory") == memory) & (pl.col("sign") == 1))
            ranks = rows.filter(pl.col("sentence").is_in(sentences))["rank"].sort().to_list()
            for name, value in zip(columns, (layer, memory, number, kind, ranks), strict=True):
                columns[name].append(value)
    count = len(columns["layer"])
    columns |= {"description": [""] * count, "lift": [None] * count, "log10_p": [None] * count}
    write_table(out / "patterns.parquet", columns, name="patterns", provenance=atlas.manifest.provenance)
    return out


def check(atlas: Path, question: str, expected: dict[str, Expected], *, near: float) -> None:
    """Each name's values of layers 0, 1, 2 and, if there is a fourth, of all; or of all alone."""
    found = answer(atlas, question)
    values = {(row["layer"], row["name"]): row["value"] for row in found.rows(named=True)}
    for name, numbers in expected.items():
        layers = [None] if len(numbers) == 1 else [0, 1, 2, None][: len(numbers)]
        for layer, number in zip(layers, numbers, strict=True):
            value = values[layer, name]
            if number is None:
                assert value is None, f"{question} {name} layer {layer}: {value}, not null"
            else:
                assert value is not None, f"{question} {name} layer {layer}: null, not {number}"
                assert abs(value - float(number)) <= near, f"{question} {name} layer {layer}: {value}, not {number}"


def exactly(atlas: Path, question: str, **expected: Expected) -> None:
    """Shares, counts and ranks."""
    check(atlas, question, expected, near=1e-12)


def nearly(atlas: Path, question: str, **expected: Expected) -> None:
    """Numbers that float32 holds."""
    check(atlas, question, expected, near=1e-6)


def of(hits: int, cases: int) -> Fraction:
    """A share."""
    return Fraction(hits, cases)


def log_p(scores: dict[str, float], word: str) -> float:
    """The log of softmax over all 24 words; those not named score 0."""
    total = sum(math.exp(score) for score in scores.values()) + len(WORDS) - len(scores)
    return scores.get(word, 0.0) - math.log(total)
