"""Compares a mined atlas with the brute-force reference, in both directions: nothing wrong is there, nothing missing.

"Equal" is definitions.md section 3: within `1e-5 * max(1, |c|)`, at the place it names, in order wherever neighbours
differ by more.
"""

from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mining.reference import Reference

EDGES = [-(2.0**k) for k in range(6, -11, -1)] + [0.0] + [2.0**k for k in range(-10, 7)]


def tie(value: Any) -> Any:
    """How far apart two numbers may be and still count as equal."""
    return 2e-5 * np.maximum(1.0, np.abs(value))


def assert_best(rows: Sequence[tuple[Hashable, float]], exact: Mapping[Hashable, float], keep: int, what: str) -> None:
    """`rows` are the `keep` best of `exact`, best first, up to ties."""
    keys = [key for key, _ in rows]
    assert len(set(keys)) == len(keys), f"{what}: a place appears twice"
    for key, value in rows:
        assert key in exact, f"{what}: {key} cannot be among the best"
        assert abs(exact[key] - value) <= tie(exact[key]), f"{what}: {key} has {value}, reference {exact[key]}"
    for (a, first), (b, second) in pairwise(rows):
        assert first >= second, f"{what}: {a} before {b}"
        assert exact[a] >= exact[b] - tie(exact[a]), f"{what}: {a} before {b}"
    assert len(rows) <= keep
    left = [value for key, value in exact.items() if key not in set(keys)]
    if left and len(rows) < keep:
        assert max(left) <= 1e-5, f"{what}: {max(left)} is missing, there is room"
    elif left:
        least = rows[-1][1]
        assert max(left) <= least + tie(least), f"{what}: {max(left)} is missing, the last kept is {least}"


def assert_triggers(
    atlas: Path, reference: Reference, layer: int, *, keep: int, per_sentence: str = "1", signs: tuple[int, ...]
) -> None:
    """Rows, order, tokens and prefix groups of one layer's triggers."""
    table = pl.read_parquet(atlas / f"triggers/layer-{layer:03d}.parquet")
    places, whole = reference.places(layer)
    assert set(table["sign"].unique()) <= set(signs)
    order = table.select("memory", pl.col("sign").neg(), "rank")
    assert order.equals(order.sort("memory", "sign", "rank")), "rows go by memory, sign (+1 first), rank"
    mine: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in table.iter_rows(named=True):
        mine.setdefault((row["memory"], row["sign"]), []).append(row)
    sentence_of = np.array([sentence for sentence, _ in places])
    index = {place: row for row, place in enumerate(places)}
    for memory in range(whole.shape[1]):
        for sign in signs:
            rows = mine.pop((memory, sign), [])
            what = f"L{layer}.M{memory} sign {sign:+d}"
            signed = sign * whole[:, memory]
            assert [row["rank"] for row in rows] == list(range(len(rows)))
            assert all(sign * row["coefficient"] > 0 for row in rows)
            if per_sentence == "all":
                best = [((r["sentence"], r["position"]), sign * r["coefficient"]) for r in rows]
                exact = {places[row]: float(signed[row]) for row in np.flatnonzero(signed > -1e-5)}
                assert_best(best, exact, keep, what)
            else:
                top = np.full(len(reference.sentences), -np.inf)
                np.maximum.at(top, sentence_of, signed)
                for row in rows:
                    here = signed[index[row["sentence"], row["position"]]]
                    assert abs(here - sign * row["coefficient"]) <= tie(here), f"{what}: {row}, reference {here}"
                best = [(r["sentence"], sign * r["coefficient"]) for r in rows]
                assert_best(best, {n: float(top[n]) for n in np.flatnonzero(top > -1e-5).tolist()}, keep, what)
            for a, b in pairwise(rows):
                if a["coefficient"] == b["coefficient"]:
                    assert (a["sentence"], a["position"]) < (b["sentence"], b["position"]), f"{what}: exact ties"
            groups: dict[tuple[int, ...], int] = {}
            for row in rows:
                tokens, j = reference.sentences[row["sentence"]].tokens, row["position"]
                assert row["token"] == tokens[j]
                assert row["next_token"] == (tokens[j + 1] if j + 1 < len(tokens) else None)
                assert row["prefix_group"] == groups.setdefault(reference.context(tokens, j), row["rank"]), what
    assert not mine


def assert_activity(atlas: Path, reference: Reference, layer: int, *, sampled: list[int] | None = None) -> None:
    """Counts, moments and histogram of one layer; `sampled` sentences, if not all of them."""
    table = pl.read_parquet(atlas / f"activity/layer-{layer:03d}.parquet")
    whole = reference.everything(layer)
    part = whole if sampled is None else reference.everything(layer, sampled)
    assert table["memory"].to_list() == list(range(whole.shape[1]))
    assert (set(table["prefixes"]), set(table["sampled"])) == ({len(whole)}, {len(part)})
    for row, x, some in zip(table.iter_rows(named=True), whole.T, part.T, strict=True):
        what = f"activity of L{layer}.M{row['memory']}"
        assert (x > 1e-5).sum() <= row["positive"] <= ((x > -1e-5) & (x != 0)).sum(), what
        expected = {"mean": x.mean(), "min": x.min(), "max": x.max(), "std": some.std()}
        for name, number in expected.items():
            assert abs(row[name] - number) <= tie(number), f"{what}: {name} is {row[name]}, reference {number}"
        assert (len(row["histogram"]), sum(row["histogram"])) == (len(EDGES) + 1, len(some))
        below = np.cumsum(row["histogram"])[:-1]
        for edge, count in zip(EDGES, below, strict=True):
            least = (some < edge - tie(edge)).sum()
            most = (some < edge + tie(edge)).sum() if edge else ((some < 1e-5) & (some != 0)).sum()
            assert least <= count <= most, f"{what}: {count} below {edge}, reference {least}..{most}"


def assert_values(atlas: Path, reference: Reference, layer: int, *, every: int = 1) -> None:
    """Top and bottom tokens, distribution, targets and what the triggers' next tokens get; of every n-th memory."""
    table = pl.read_parquet(atlas / f"values/layer-{layer:03d}.parquet")
    triggers = pl.read_parquet(atlas / f"triggers/layer-{layer:03d}.parquet").filter(pl.col("sign") == 1)
    rows_of: dict[int, list[dict[str, Any]]] = {}
    spoken_of = reference.spoken_of
    for row in triggers.filter(pl.col(spoken_of).is_not_null()).iter_rows(named=True):
        rows_of.setdefault(row["memory"], []).append(row)
    scores, opposite, values = reference.scores(layer), reference.opposite(layer), reference.values(layer)
    assert table["memory"].to_list() == list(range(len(values)))
    rows = list(table.iter_rows(named=True))
    for row, own, other, value in list(zip(rows, scores, opposite, values, strict=True))[::every]:
        what = f"value of L{layer}.M{row['memory']}"
        # Shifted up, so that all scores count as qualifying.
        lift = 1.0 + 2 * float(np.abs([own, other]).max())
        # `bottom` are the top of scores(-v), so their scores are those of -v.
        for name, sided in (("top", own), ("bottom", other)):
            exact = {token: lift + float(score) for token, score in enumerate(sided)}
            shown = zip(row[f"{name}_tokens"], row[f"{name}_scores"], strict=True)
            assert_best([(token, lift + score) for token, score in shown], exact, 20, f"{what}, {name}")
            assert len(row[f"{name}_tokens"]) == min(20, len(own))
        shifted = own - own.max()
        log_p = shifted - np.log(np.exp(shifted).sum())
        p = np.exp(log_p)
        expected = {"value_norm": np.linalg.norm(value), "max_probability": p.max(), "entropy": -(p * log_p).sum()}
        for name, sided in (("top_z", own), ("bottom_z", other)):
            expected[name] = (sided.max() - sided.mean()) / sided.std()
        followed = rows_of.get(row["memory"], [])
        if followed:
            expected["trigger_log_probability"] = np.mean([log_p[r[spoken_of]] for r in followed])
            best = max(r["coefficient"] for r in followed)
            tied = [r for r in followed if best - r["coefficient"] < tie(best)]
            chosen = min(tied, key=lambda r: (r["sentence"], r["rank"]))
            assert row["target"] == chosen[spoken_of], what
            mark = own[row["target"]]
            assert (own > mark + tie(mark)).sum() <= row["target_rank"] <= (own >= mark - tie(mark)).sum() - 1, what
        else:
            assert (row["target"], row["target_rank"], row["trigger_log_probability"]) == (None, None, None), what
        # Numbers far below 1 are compared by their own size. A probability is as uncertain, of itself, as its score is.
        allowed = {"value_norm": 1e-5 * expected["value_norm"]}
        allowed["max_probability"] = 2 * tie(np.abs(own).max()) * expected["max_probability"]
        for name, number in expected.items():
            far = allowed.get(name, tie(number))
            assert abs(row[name] - number) <= far, f"{what}: {name} is {row[name]}, reference {number}"


def assert_neighbours(atlas: Path, reference: Reference, layers: Sequence[int]) -> None:
    """The ten most similar values of every memory of every mined layer, among the mined layers."""
    directions, owner = [], []
    for layer in layers:
        values = reference.values(layer)
        directions.append(values / np.linalg.norm(values, axis=1, keepdims=True))
        owner += [(layer, memory) for memory in range(len(values))]
    cosine = np.concatenate(directions) @ np.concatenate(directions).T
    row_of = {place: row for row, place in enumerate(owner)}
    for layer in layers:
        table = pl.read_parquet(atlas / f"neighbours/layer-{layer:03d}.parquet")
        assert table.select("memory", "rank").equals(table.select("memory", "rank").sort("memory", "rank"))
        found: dict[int, list[tuple[Hashable, float]]] = {m: [] for m in range(len(reference.values(layer)))}
        for row in table.iter_rows(named=True):
            found[row["memory"]].append(((row["other_layer"], row["other_memory"]), 2 + row["cosine"]))
        for memory, rows in found.items():
            mine = (layer, memory)
            exact = {place: 2 + float(cosine[row_of[mine], row_of[place]]) for place in owner if place != mine}
            assert_best(rows, exact, 10, f"neighbours of L{layer}.M{memory}")
            assert len(rows) == min(10, len(owner) - 1)


def assert_text_tables(atlas: Path, reference: Reference, *, vocabulary: int) -> None:
    """Token counts, the background sample, and the sentences that other tables name: all of those and no others."""
    counts = np.zeros((3, vocabulary), np.int64)
    for number in reference.mined:
        tokens = reference.sentences[number].tokens
        for j, token in enumerate(tokens):
            counts[0, token] += 1
            counts[1 if j else 2, token] += 1
    tokens = pl.read_parquet(atlas / "tokens.parquet")
    assert tokens["token"].to_list() == list(range(vocabulary))
    for row, name in enumerate(("count", "next_count", "first_count")):
        assert tokens[name].to_list() == counts[row].tolist(), name
    background = pl.read_parquet(atlas / "background.parquet")
    places = reference.places(0)[0]
    assert len(places) <= 20_000, "the tests' texts are small: every place is in the sample"
    expected = []
    for sentence, position in places:
        own = reference.sentences[sentence].tokens
        expected.append((sentence, position, own[position], own[position + 1] if position + 1 < len(own) else None))
    assert background.rows() == expected
    named = set(background["sentence"])
    for path in (atlas / "triggers").glob("*.parquet"):
        named |= set(pl.read_parquet(path)["sentence"])
    named |= set(pl.read_parquet(atlas / "prefixes.parquet")["sentence"])
    stored = pl.concat([pl.read_parquet(path) for path in sorted((atlas / "sentences").glob("*.parquet"))])
    assert stored["sentence"].to_list() == sorted(named)
    for row in stored.iter_rows(named=True):
        own = reference.sentences[row.pop("sentence")]
        assert row == vars(own)


def assert_agrees(
    atlas: Path, reference: Reference, *, keep: int, layers: Sequence[int], vocabulary: int, per_sentence: str = "1"
) -> None:
    """Every table of a whole atlas."""
    signs = (1, -1) if reference.negative() else (1,)
    for layer in layers:
        assert_triggers(atlas, reference, layer, keep=keep, per_sentence=per_sentence, signs=signs)
        assert_activity(atlas, reference, layer)
        assert_values(atlas, reference, layer)
    assert_neighbours(atlas, reference, layers)
    assert_text_tables(atlas, reference, vocabulary=vocabulary)
