"""Compares two mined atlases of one text whose models compute the same function: their tables are equal to rounding.

Coefficients and scores that differ by less than `1e-5 * max(1, |c|)` are tied (definitions.md section 3): what is tied
may change places with each other, or with what was not kept. Whole numbers that a tie decides (a rank, a count of what
is above zero, the most probable token) may differ, but rarely, so that the allowance hides nothing.
"""

from collections.abc import Hashable, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from mining.agreement import tie

RARE = 0.02
"""The largest share of whole numbers that a tie may have decided otherwise."""
MOVED = 0.2
"""The largest share of memories of which a tie may have kept other triggers: the text repeats its prefixes."""


def assert_equal_atlases(one: Path, other: Path) -> None:
    """Every table of the text, and every table of every layer."""
    for name in ("vocabulary", "tokens", "background"):
        assert pl.read_parquet(one / f"{name}.parquet").equals(pl.read_parquet(other / f"{name}.parquet")), name
    prefixes = [sentence_tokens(atlas) for atlas in (one, other)]
    assert all(prefixes[0][n] == prefixes[1][n] for n in set(prefixes[0]) & set(prefixes[1]))
    layers = len(list((one / "triggers").iterdir()))
    for layer in range(layers):
        moved = assert_equal_triggers(*_layer(one, other, "triggers", layer))
        assert_equal_activity(*_layer(one, other, "activity", layer))
        assert_equal_values(*_layer(one, other, "values", layer), moved=moved)
        assert_equal_neighbours(*_layer(one, other, "neighbours", layer))
    assert_equal_removals(one, other)
    assert_equal_predictions(one, other)


def sentence_tokens(atlas: Path) -> dict[int, list[int]]:
    """The tokens of every sentence that the atlas names."""
    table = pl.read_parquet(atlas / "sentences" / "*.parquet")
    return dict(zip(table["sentence"].to_list(), table["tokens"].to_list(), strict=True))


def _layer(one: Path, other: Path, name: str, layer: int) -> tuple[pl.DataFrame, pl.DataFrame, str]:
    paths = (atlas / name / f"layer-{layer:03d}.parquet" for atlas in (one, other))
    return *map(pl.read_parquet, paths), f"{name} of layer {layer}"


def lists_of(
    table: pl.DataFrame, key: Sequence[str], place: Sequence[str], size: pl.Expr
) -> dict[tuple[int, ...], list[tuple[Hashable, float]]]:
    """What each list of a table holds, best first, and how good that is."""
    found: dict[tuple[int, ...], list[tuple[Hashable, float]]] = {}
    for row in table.select(*key, *place, size.alias("size")).iter_rows():
        found.setdefault(row[: len(key)], []).append((row[len(key) : -1], row[-1]))
    return found


def assert_equal_lists(a: Sequence[tuple[Hashable, float]], b: Sequence[tuple[Hashable, float]], what: str) -> None:
    """Two lists of the best of something, best first: equal rank by rank, entry by entry, up to ties."""
    least = min(len(a), len(b))
    for (_, x), (_, y) in zip(a, b, strict=False):
        assert abs(x - y) <= tie(x), f"{what}: {x} and {y} have the same rank"
    last = b[least - 1][1] if len(a) == len(b) else 0.0  # one more in one of them: it is as good as nothing
    of_a, of_b = dict(a), dict(b)
    for entry in of_a.keys() | of_b.keys():
        x, y = of_a.get(entry, last), of_b.get(entry, last)
        assert abs(x - y) <= 2 * tie(x), f"{what}: {entry} has {x} and {y}"


def assert_rarely_different(a: pl.DataFrame, b: pl.DataFrame, names: Sequence[str], what: str) -> None:
    """Columns of whole numbers, equal in nearly all rows."""
    assert a.height == b.height > 0, what
    for name in names:
        differ = int((a[name].ne_missing(b[name])).sum())
        assert differ <= RARE * a.height, f"{what}: {name} differs in {differ} of {a.height} rows"


def assert_close(a: pl.Series, b: pl.Series, what: str) -> None:
    """Columns of numbers, equal to rounding; nothing stays nothing."""
    x, y = (column.cast(pl.Float64).fill_null(np.nan).to_numpy() for column in (a, b))
    assert (np.isnan(x) == np.isnan(y)).all(), f"{what}: {a.name}"
    wrong = np.flatnonzero(np.abs(x - y) > tie(x))
    assert not len(wrong), f"{what}: {a.name} is {x[wrong[0]]} and {y[wrong[0]]} in row {wrong[0]} of {len(x)}"


def assert_equal_triggers(a: pl.DataFrame, b: pl.DataFrame, what: str) -> list[int]:
    """The lists of all memories and signs; returns the memories of which a tie has kept other positive triggers."""
    place = ("sentence", "position", "token", "next_token")
    lists = [lists_of(each, ("memory", "sign"), place, pl.col("sign") * pl.col("coefficient")) for each in (a, b)]
    assert lists[0], f"{what}: nothing to compare"
    moved = []
    for key in sorted(lists[0].keys() | lists[1].keys()):
        x, y = (found.get(key, []) for found in lists)
        assert_equal_lists(x, y, f"{what}, {key}")
        if key[1] == 1 and dict(x).keys() != dict(y).keys():
            moved.append(key[0])
    assert len(moved) <= MOVED * len(lists[0]), f"{what}: {len(moved)} memories have other triggers"
    return moved


def assert_equal_activity(a: pl.DataFrame, b: pl.DataFrame, what: str) -> None:
    """Counts nearly, moments to rounding, the histogram nearly."""
    assert a.select("memory", "prefixes", "sampled").equals(b.select("memory", "prefixes", "sampled")), what
    for name in ("mean", "min", "max", "std"):
        assert_close(a[name], b[name], what)
    moved = (a["positive"] - b["positive"]).abs().max()
    assert moved <= RARE * a["prefixes"][0], f"{what}: {moved} positives"
    x, y = (np.array(table["histogram"].to_list()) for table in (a, b))
    assert (np.abs(x - y).sum(1) <= 2 * RARE * a["sampled"].to_numpy()).all(), f"{what}: histogram"


def assert_equal_values(a: pl.DataFrame, b: pl.DataFrame, what: str, *, moved: Sequence[int]) -> None:
    """Norms, top and bottom tokens, distributions; targets and next tokens but of the memories that a tie moved."""
    assert a["memory"].equals(b["memory"])
    for name in ("key_norm", "up_norm", "value_norm", "max_probability", "entropy"):
        assert_close(a[name], b[name], what)
    for side in ("top", "bottom"):
        columns = ("memory", f"{side}_tokens", f"{side}_scores")
        for (memory, *x), (_, *y) in zip(a.select(columns).iter_rows(), b.select(columns).iter_rows(), strict=True):
            assert_equal_lists(*(list(zip(*of, strict=True)) for of in (x, y)), f"{what}, {side} of {memory}")
    x, y = (table.filter(~pl.col("memory").is_in(moved)) for table in (a, b))
    assert_close(x["trigger_log_probability"], y["trigger_log_probability"], what)
    assert_rarely_different(x, y, ("target", "target_rank"), what)


def assert_equal_neighbours(a: pl.DataFrame, b: pl.DataFrame, what: str) -> None:
    """The lists of all memories."""
    place = ("other_layer", "other_memory")
    lists = [lists_of(each, ("memory",), place, pl.col("cosine")) for each in (a, b)]
    assert lists[0].keys() == lists[1].keys()
    for memory, rows in lists[0].items():
        assert_equal_lists(rows, lists[1][memory], f"{what}, {memory}")


def assert_equal_removals(one: Path, other: Path) -> None:
    """Every trigger that both ask about; a tie may let another sentence stand for a prefix."""
    tables = []
    for atlas in (one, other):
        asked = ["layer", "memory", "sign", pl.col("rank").cast(pl.Int16).alias("trigger_rank"), "sentence"]
        paths = sorted((atlas / "triggers").iterdir())
        triggers = [pl.read_parquet(p).with_columns(layer=pl.lit(n, pl.Int16)) for n, p in enumerate(paths)]
        removals = pl.read_parquet(atlas / "removals.parquet")
        tables.append(removals.join(pl.concat(triggers).select(asked), on=["layer", "memory", "sign", "trigger_rank"]))
        assert tables[-1].height == removals.height > 0
    both = tables[0].join(tables[1], on=["layer", "memory", "sign", "sentence", "position", "removed"], suffix="_other")
    assert both.height >= 0.9 * max(table.height for table in tables)
    assert both["removed_position"].equals(both["removed_position_other"])
    for name in ("coefficient", "removed_coefficient"):
        assert_close(both[name], both[f"{name}_other"], "removals")


def assert_equal_predictions(one: Path, other: Path) -> None:
    """The same prefixes, and of every layer the same tokens, ranks, counts and shares."""
    prefixes = [pl.read_parquet(atlas / "prefixes.parquet") for atlas in (one, other)]
    assert prefixes[0].drop("final_top").equals(prefixes[1].drop("final_top"))
    assert_rarely_different(*prefixes, ("final_top",), "prefixes")
    a, b = (pl.read_parquet(atlas / "predictions.parquet") for atlas in (one, other))
    assert a.select("prefix", "layer").equals(b.select("prefix", "layer"))
    whole = [name for name, kind in a.schema.items() if kind == pl.Int32]
    assert_rarely_different(a, b, whole, "predictions")
    for name in ("residual_final_probability", "effective", "top_share"):
        assert_close(a[name], b[name], "predictions")
