"""What answers of attribute and diff share: a document to save, one form of text and HTML, and what an atlas knows of
the memories in a list.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.features import promoted_tokens
from mnemoscope.foundation.formatting import Table, show_token
from mnemoscope.foundation.memory_names import MemoryId, save_list
from mnemoscope.foundation.origin import Result, made_by
from mnemoscope.patterns.labels import listed_labels
from mnemoscope.tracing.records import plain

SHOWN = 20
"""Memories that text and HTML show."""
Spread = tuple[float, float, float]
"""Lowest, median and highest."""
Row = dict[str, Any]
_WEIGHTS, _SIGNED = ("effect", "change", "ablation", "attribution"), ("coefficient_second", "coefficient")
"""The columns of a memory's weight and sign in a list; the first that a row has counts."""


def origin_of(model: str | list[str], atlas: Atlas | None, seed: int, **options: Any) -> dict[str, Any]:
    """`made_by` of an answer about models with these fingerprints."""
    return made_by(model=model, atlas=None if atlas is None else atlas.manifest_hash, options=options, seed=seed)


class Explanation(Result, ABC):
    """A dataclass whose fields are the entries of its document, unless it makes others of them."""

    def to_dict(self) -> dict[str, Any]:
        """The document of contract.md."""
        return {name: plain(value) for name, value in vars(self).items()}

    def save_list(self, path: str | os.PathLike[str]) -> Path:
        """Writes the memories to `path`, each once, as a list, which `@FILE` names wherever memories are. Raises
        StoreFailed.
        """
        entries = vars(self)
        rows = entries["memories"].to_dicts()
        listed = (
            (row["memory"], -1 if _first(row, _SIGNED, 1) < 0 else 1, _first(row, _WEIGHTS, None)) for row in rows
        )
        model = entries["model"] if "model" in entries else entries["names"][1]
        return save_list(path, listed, model=model, made_by=entries["made_by"])

    def towards(self, count: int) -> list[str]:
        """The first `count` memories of the list that push towards the second's answer, or the target."""
        rows = vars(self)["memories"].to_dicts()
        return [row["memory"] for row in rows if _first(row, _WEIGHTS, 0) > 0][:count]

    @abstractmethod
    def title(self) -> str:
        """What was asked, in a few words."""

    @abstractmethod
    def blocks(self) -> Sequence[str | Table]:
        """Lines and tables, for a terminal and for HTML; an empty line parts them."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.title()}; print it to read it>"

    def text(self) -> str:
        """The answer as text."""
        return "\n".join(line for one in self.blocks() for line in ([one] if isinstance(one, str) else one.lines()))

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        shown = [one for one in self.blocks() if one]
        return "\n".join(f"<p>{escape(one)}</p>" if isinstance(one, str) else one.html() for one in shown)


def _first(row: Row, names: Sequence[str], otherwise: Any) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), otherwise)


def logits(value: float | None) -> str:
    return "-" if value is None else f"{value:+.3f}"


def spread_text(spread: Spread) -> str:
    return "{1:+.2f} ({0:+.2f} to {2:+.2f})".format(*spread)


def memory_table(
    memories: pl.DataFrame,
    columns: Mapping[str, int],
    cells: Callable[[Row], list[str]],
    *,
    about: bool = True,
) -> Table:
    """The first memories of a list: name, its `cells` under these columns, each with its most cells in a terminal, and
    its label, else the tokens that it promotes.
    """
    rows = []
    for row in memories.head(SHOWN).to_dicts():
        label = row.get("label") or " ".join(map(show_token, row.get("promotes") or ()))
        rows.append([row["memory"], *cells(row), *([label] if about else [])])
    widths = {"memory": 16, **columns, **({"about": 60} if about else {})}
    return Table([*widths], rows, [*widths.values()])


def with_labels(memories: pl.DataFrame, atlas: Atlas | None, sign: pl.Expr | None = None) -> pl.DataFrame:
    """The list with what is said of each memory's feature of a sign, if not +1, as `label`; null where nothing is."""
    signs = memories.with_columns(sign=pl.lit(1) if sign is None else sign)["sign"]
    features = list(zip(map(MemoryId.parse, memories["memory"]), signs, strict=True))
    said = {} if atlas is None else listed_labels(atlas, features)
    return memories.with_columns(pl.Series("label", list(map(said.get, features)), dtype=pl.String))


def about_memories(
    memories: pl.DataFrame,
    atlas: Atlas | None,
    tokens: Sequence[str],
    *,
    coefficient: str = "coefficient",
    first: int = 0,
) -> pl.DataFrame:
    """The list with the `token` at each position, where the `tokens` begin with position `first`; and, from an atlas,
    what is known of each memory and the sign of its coefficient: `label`, `promotes` (five tokens, none without a clear
    one) and `trigger` (the best one's text).
    """
    positive = pl.col(coefficient) >= 0  # a memory that no longer fires is what it was when it did
    memories = memories.with_columns(
        pl.col("position") + first,
        pl.Series("token", [tokens[position] for position in memories["position"]], dtype=pl.String),
    )
    memories = with_labels(memories, atlas, pl.when(positive).then(1).otherwise(-1))
    if atlas is None:
        return memories

    @cache
    def about(name: str, positive: bool) -> tuple[list[str], str | None]:
        memory = MemoryId.parse(name)
        if memory.layer not in atlas.layers:
            return [], None
        mined = atlas[memory]
        best = mined.triggers(sign=1 if positive else -1).head(1)
        promotes = promoted_tokens(mined.value().to_dicts()[0], 1 if positive else -1)[:5]
        return [atlas.vocabulary.texts[token] for token in promotes], best["text"][0] if best.height else None

    described = [about(*row) for row in memories.select("memory", positive).iter_rows()]
    return memories.with_columns(
        pl.Series("promotes", [promotes for promotes, _ in described], dtype=pl.List(pl.String)),
        pl.Series("trigger", [trigger for _, trigger in described], dtype=pl.String),
    )
