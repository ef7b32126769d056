"""The tables `removals`, `prefixes` and `predictions` computed anew, one prefix and one memory at a time.

Which prefixes and which memories were drawn is taken from the tables; everything said about them is computed from the
slow model and the sentences' tokens alone, and compared: integers must be among those that rounding allows
(definitions.md section 3: within `1e-5 * max(1, |c|)`), other numbers equal to as much. What is returned are the
reference's own rows, to ask the questions of; only where rounding allows several integers is the table's one taken.
"""

import hashlib
import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from mining.reference import Sentence, documents_of, sentences_of
from mining.slow_model import Place, Slow

Row = dict[str, Any]


def tie(value: float) -> float:
    """How far apart two numbers may be and still count as equal."""
    return 1e-5 * max(1.0, abs(value))


def tops(scores: Tensor) -> set[int]:
    """The tokens that rounding allows to come first."""
    best = float(scores.max())
    return {token for token, score in enumerate(scores.tolist()) if score >= best - tie(best)}


def ranks(scores: Tensor, token: int) -> range:
    """The ranks that rounding allows a token to have; without ties one, how many score higher."""
    own = float(scores[token])
    above = sum(score > own + tie(own) for score in scores.tolist())
    level = sum(abs(score - own) <= tie(own) for score in scores.tolist())
    return range(above, above + level)


def probability(scores: Tensor, token: int) -> float:
    """The token's share of softmax(scores)."""
    highest = float(scores.max())
    terms = [math.exp(score - highest) for score in scores.tolist()]
    return terms[token] / sum(terms)


@dataclass(frozen=True)
class Text:
    """The sentences that may be drawn: tokens and document by id; `first` is the first position that counts."""

    tokens: Mapping[int, list[int]]
    documents: Mapping[int, int]
    first: int


def distinct(raw: str, tokenizer: Any, beginning: int | None) -> list[Sentence]:
    """The sentences of a text of lines, as the tests' models cut it."""
    return sentences_of(documents_of(raw, "line"), lambda line: [line], tokenizer, longest=64 - (beginning is not None))


def held_out(sentences: list[Sentence], beginning: int | None) -> Text:
    """The text whose prefixes are drawn where no validation text is given."""
    kept = {number: sentence for number, sentence in enumerate(sentences) if sentence.held_out}
    documents = {n: s.document for n, s in kept.items()}
    return Text({n: s.tokens for n, s in kept.items()}, documents, int(beginning is None))


def given(mined: list[Sentence], other: list[Sentence], documents: int, beginning: int | None) -> Text:
    """The text whose prefixes are drawn where one is given: numbered after the mined text."""
    numbered = {len(mined) + number: sentence for number, sentence in enumerate(other)}
    own = {n: documents + s.document for n, s in numbered.items()}
    return Text({n: s.tokens for n, s in numbered.items()}, own, int(beginning is None))


class Predictions:
    """What the slow model says of listed prefixes."""

    def __init__(self, slow: Slow) -> None:
        self.slow = slow
        self._votes: dict[tuple[int, int, int], set[int]] = {}

    def votes(self, layer: int, memory: int, sign: int) -> set[int]:
        """top(sign * v_i), more than one token only where rounding decides; sign 0: by the paper's formula."""
        key = (layer, memory, sign)
        if key not in self._votes:
            value, branch = self.slow.values(layer)[memory], self.slow.branch(memory)
            slow = self.slow
            self._votes[key] = tops(slow.value_scores(layer, sign * value, branch) if sign else slow.bare(value))
        return self._votes[key]

    def row(self, layer: int, place: Place, final: int, literal_final: int, found: Row) -> Row:
        """The columns of `predictions` at one place (definitions.md sections 4 and 4b); AssertionError if `found`, the
        row of the table, differs.
        """
        slow = self.slow
        what = f"prefix {found['prefix']} layer {layer}"
        residual, update, output = slow.lens(place.residual), slow.lens(place.update), slow.lens(place.output)
        row: Row = {"prefix": found["prefix"], "layer": layer}

        def settle(name: str, allowed: Sequence[int] | set[int]) -> int:
            assert found[name] in allowed, f"{what}: {name} is {found[name]}, reference {sorted(allowed)}"
            row[name] = found[name] if len(allowed) > 1 else next(iter(allowed))
            return int(row[name])

        residual_top = settle("residual_top", tops(residual))
        settle("ffn_top", tops(update))
        ffn_vote_top = settle("ffn_vote_top", tops(slow.update_scores(layer, place.update)))
        output_top = settle("output_top", tops(output))
        settle("residual_final_rank", ranks(residual, final))
        settle("ffn_final_rank", ranks(update, final))
        settle("output_top_residual_rank", ranks(residual, output_top))
        settle("residual_top_ffn_rank", ranks(update, residual_top))
        numbers = {"residual_final_probability": probability(residual, final)}
        bare = {name: slow.bare(getattr(place, name)) for name in ("residual", "ffn_output", "output")}
        if bare["residual"] is None:  # a transform stands before the head
            row |= {name: None for name in found if name.startswith("literal_")}
            assert all(found[name] is None for name in row if name.startswith("literal_")), what
        else:
            settle("literal_residual_top", tops(bare["residual"]))
            top = settle("literal_ffn_top", tops(bare["ffn_output"]))
            settle("literal_output_top", tops(bare["output"]))
            literal = [self.votes(layer, memory, 0) for memory in range(len(slow.values(layer)))]
            settle("literal_votes", range(literal.count({top}), sum(top in own for own in literal) + 1))
            for name, token in (("final", final), ("bare", literal_final)):
                numbers[f"literal_residual_{name}_probability"] = probability(bare["residual"], token)

        m = place.coefficients.tolist()
        norms = [math.sqrt(sum(x * x for x in value)) for value in slow.values(layer).tolist()]
        c = [abs(m_i) * norm for m_i, norm in zip(m, norms, strict=True)]
        settle("active", range(sum(x > 1e-5 for x in m), sum(x > -1e-5 and x != 0 for x in m) + 1))
        total, squares = sum(c), sum(x * x for x in c)
        numbers["effective"] = total * total / squares if squares else 0.0
        numbers["top_share"] = max(c) / total if total else 0.0
        order = sorted(range(len(c)), key=lambda i: (-c[i], i))
        fewest, most = (_smallest(order, c, 0.9 * total * (1 + slack)) for slack in (-1e-5, 1e-5))
        settle("major", range(fewest, most + 1))
        certain = {i for i in order[:fewest] if fewest == len(c) or c[i] > c[order[fewest]] + 1e-5}
        possible = {i for i in range(len(c)) if most and c[i] >= c[order[most - 1]] - 1e-5}

        def voters(token: int, sure: set[int], maybe: set[int]) -> range:
            least = sum(abs(m[i]) > 1e-5 and self.votes(layer, i, _sign(m[i])) == {token} for i in sure)
            most = sum(m[i] != 0 and token in self.votes(layer, i, _sign(m[i])) for i in maybe)
            return range(least, most + 1)

        everybody = set(range(len(m)))
        settle("votes_ffn", voters(ffn_vote_top, everybody, everybody))
        settle("votes_ffn_major", voters(ffn_vote_top, certain, possible))
        settle("votes_output", voters(output_top, everybody, everybody))
        # A probability is as uncertain, of itself, as its score is.
        scores = {name: bare["residual"] if name.startswith("literal") else residual for name in numbers}
        allowed = {name: 2 * tie(float(scores[name].abs().max())) * numbers[name] for name in numbers if "prob" in name}
        for name, number in numbers.items():
            far = allowed.get(name, tie(number))
            assert abs(found[name] - number) <= far, f"{what}: {name} is {found[name]}, reference {number}"
        assert set(found) == set(row) | set(numbers)
        return row | numbers


def _sign(number: float) -> int:
    return 1 if number > 0 else -1


def _smallest(order: list[int], c: list[float], share: float) -> int:
    """How many of the largest are needed to hold the share."""
    held, count = 0.0, 0
    while count < len(order) and held < share:
        held += c[order[count]]
        count += 1
    return count


def check_predictions(
    atlas: Path, slow: Slow, text: Text, *, asked: int, layers: Sequence[int] | None = None
) -> tuple[list[Row], list[Row]]:
    """The reference's rows of `prefixes` and `predictions`; the drawn prefixes must be as definitions.md wants them."""
    prefixes = pl.read_parquet(atlas / "prefixes.parquet").rows(named=True)
    mined = pl.read_parquet(atlas / "predictions.parquet").rows(named=True)
    layers = range(slow.layers) if layers is None else layers
    usable = [sentence for sentence, tokens in text.tokens.items() if len(tokens) >= text.first + 2]
    assert len(prefixes) == min(asked, len(usable))
    assert [row["prefix"] for row in prefixes] == list(range(len(prefixes)))
    assert len({row["sentence"] for row in prefixes}) == len(prefixes)
    assert [(r["prefix"], r["layer"]) for r in mined] == [(p, layer) for p in range(len(prefixes)) for layer in layers]
    predictions = Predictions(slow)
    own, rows = [], []
    for prefix in prefixes:
        tokens, j = text.tokens[prefix["sentence"]], prefix["position"]
        assert text.first <= j <= len(tokens) - 2
        places, logits = slow.read(tokens[: j + 1])
        bare = slow.bare(places[-1].output)
        allowed = {"final_top": tops(logits), "literal_final_top": {None} if bare is None else tops(bare)}
        assert all(prefix[name] in tokens for name, tokens in allowed.items()), f"{prefix}: {allowed}"
        own.append(
            {
                **{"prefix": prefix["prefix"], "sentence": prefix["sentence"]},
                **{"document": text.documents[prefix["sentence"]], "position": j, "next_token": tokens[j + 1]},
                **{name: prefix[name] if len(tokens) > 1 else tokens.pop() for name, tokens in allowed.items()},
            }
        )
        assert prefix == own[-1]
        here = mined[prefix["prefix"] * len(layers) :][: len(layers)]
        finals = own[-1]["final_top"], own[-1]["literal_final_top"]
        rows += [predictions.row(r["layer"], places[r["layer"]], *finals, r) for r in here]
    return own, rows


def check_values_at_work(
    atlas: Path, slow: Slow, text: Text, prefixes: Sequence[Row], *, factor: float | Sequence[float] = 1.0
) -> int:
    """Asserts the columns at typical activations, and `clear_z`; returns how many values have a `working_logit`.

    `factor`: the model's multipliers on the way from a value to the scores, or those of each layer.
    """
    there = 0
    for layer in range(slow.layers):
        places = [text.tokens[row["sentence"]][: row["position"] + 1] for row in prefixes]
        memories = range(len(slow.values(layer)))
        scale = {b: median(slow.scale(layer, tokens, b) for tokens in places) for b in set(map(slow.branch, memories))}
        times = factor if isinstance(factor, float) else factor[layer]
        coefficients: dict[tuple[int, int], list[float]] = {}
        for row in pl.read_parquet(atlas / f"triggers/layer-{layer:03d}.parquet").rows(named=True):
            coefficients.setdefault((row["memory"], row["sign"]), []).append(row["coefficient"])
        values = pl.read_parquet(atlas / f"values/layer-{layer:03d}.parquet")
        for sign, ending in ((1, ""), (-1, "_negative")):
            for row, value in zip(values.rows(named=True), slow.values(layer), strict=True):
                found = row[f"working_logit{ending}"], row[f"working_probability{ending}"]
                own = coefficients.get((row["memory"], sign))
                if own is None:
                    assert found == (None, None)
                    continue
                way = slow.branch(row["memory"])
                scores = slow.value_scores(layer, value * (median(own) * times / scale[way]), way)
                expected = float(scores.max() - scores.mean()), probability(scores, int(scores.argmax()))
                for one, other in zip(found, expected, strict=True):
                    off = abs(one - other)
                    assert off <= 1e-5 + 1e-4 * abs(other), f"L{layer}.M{row['memory']}: {found}, {expected}"
                there += sign == 1
        seed = json.loads((atlas / "manifest.json").read_text())["plan"]["seed"]
        _check_clear(slow, layer, values, seed=seed)
    return there


def _check_clear(slow: Slow, layer: int, values: pl.DataFrame, *, seed: int) -> None:
    """`clear_z` by one random direction after the other."""
    own = slow.values(layer)
    draws = np.random.default_rng((seed, 17)).standard_normal((1000, own.shape[1]), np.float32)
    length = float(torch.linalg.vector_norm(own.float(), dim=1).median())
    for way in set(map(slow.branch, range(len(own)))):
        distances = []
        for draw in draws:
            scores = slow.value_scores(layer, torch.from_numpy(draw / np.linalg.norm(draw) * length).to(own), way)
            distances.append(float((scores.max() - scores.mean()) / scores.std(correction=0)))
        found = [z for memory, z in enumerate(values["clear_z"].to_list()) if slow.branch(memory) == way]
        assert set(found) == {found[0]}
        expected = float(np.quantile(distances, 0.99))
        assert abs(found[0] - expected) <= 1e-3 * expected, f"clear_z of layer {layer}: {found[0]}, {expected}"


def check_removals(
    atlas: Path, slow: Slow, tokens: Mapping[int, list[int]], *, seed: int, removals: int | str, layers: Sequence[int]
) -> tuple[list[Row], range]:
    """The reference's rows of `removals`, and how many triggers may have been left out for being too short.

    Too short are one token; without a beginning token two, of which one alone, the attention sink, would be left. A
    because a drawn memory all of whose triggers are too short has no rows, so it cannot be told which.
    """
    mined = pl.read_parquet(atlas / "removals.parquet").rows(named=True)
    rows: list[Row] = []
    least = most = 0
    first = 1 if slow.beginning is None else 0
    cache: dict[tuple[int, ...], list[Place]] = {}

    def coefficient(layer: int, memory: int, words: list[int]) -> float:
        if tuple(words) not in cache:
            cache[tuple(words)] = slow.read(words)[0]
        return float(cache[tuple(words)][layer].coefficients[memory])

    for layer in layers:
        triggers: dict[int, list[Row]] = {}
        for trigger in pl.read_parquet(atlas / f"triggers/layer-{layer:03d}.parquet").rows(named=True):
            if trigger["sign"] == 1 and trigger["rank"] < 50:
                triggers.setdefault(trigger["memory"], []).append(trigger)
        here = {row["memory"] for row in mined if row["layer"] == layer}
        long = {memory for memory, own in triggers.items() if any(t["position"] > first for t in own)}
        assert here <= long
        if removals == "all" or int(removals) >= len(triggers):
            assert here == long
            here = set(triggers)
        else:
            unseen = int(removals) - len(here)
            short = sorted(
                len({tuple(tokens[t["sentence"]][: t["position"] + 1]) for t in own})
                for m, own in triggers.items()
                if m not in long
            )
            assert 0 <= unseen <= len(short)
            least, most = least + sum(short[:unseen]), most + sum(short[len(short) - unseen :])
        for memory in sorted(here):
            shown: list[tuple[int, ...]] = []
            for trigger in triggers[memory]:
                words, j = tokens[trigger["sentence"]], trigger["position"]
                prefix = tuple(words[: j + 1])
                if prefix in shown:
                    continue
                shown.append(prefix)
                if len(prefix) <= first + 1:
                    least, most = least + 1, most + 1
                    continue
                place = struct.pack("<5q", seed, layer, memory, trigger["sentence"], j)
                drawn = int.from_bytes(hashlib.blake2b(place, digest_size=8).digest(), "little") % (j + 1)
                for removed, k in (("first", 0), ("last", j), ("random", drawn)):
                    rows.append(
                        {
                            **{"layer": layer, "memory": memory, "sign": 1, "trigger_rank": trigger["rank"]},
                            **{"position": j, "removed": removed, "removed_position": k},
                            "coefficient": coefficient(layer, memory, list(prefix)),
                            "removed_coefficient": coefficient(layer, memory, list(prefix[:k] + prefix[k + 1 :])),
                        }
                    )
    assert len(mined) == len(rows)
    for found, row in zip(mined, rows, strict=True):
        for name, value in row.items():
            same = abs(found[name] - value) <= tie(value) if isinstance(value, float) else found[name] == value
            assert same, f"{found}: {name}, reference {row}"
        assert set(found) == set(row)
    return rows, range(least, most + 1)
