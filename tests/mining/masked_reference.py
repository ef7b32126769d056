"""What an atlas of a masked model must say: loops with transformers, one sentence at a time, a forward a question.

Every number is read off a full forward of one sentence in its frame, whole, with a token masked, or with a token
dropped. Shares no code with the package; the block's parts and the head are those of `slow_model.py`.
"""

import hashlib
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from mining.reference import Reference, Sentence
from mining.reference_passes import Predictions, Row, tie, tops
from mining.slow_model import Place, SlowTransformer


class SlowMasked(SlowTransformer):
    """A masked model of transformers; `before`, `after` and `mask` are ids."""

    def __init__(self, hf: Any, *, before: int, after: int, mask: int) -> None:
        super().__init__(hf, beginning=before)
        self.after, self.mask = after, mask
        self.hf.config._attn_implementation = "eager"
        self._kept: dict[tuple[tuple[int, ...], int], tuple[list[Place], Tensor, list[Row]]] = {}

    def framed(self, tokens: list[int]) -> Tensor:
        assert self.beginning is not None
        return torch.tensor([[self.beginning, *tokens, self.after]])

    def masked(self, tokens: list[int], position: int) -> list[int]:
        return [*tokens[:position], self.mask, *tokens[position + 1 :]]

    @torch.no_grad()
    def at(self, tokens: list[int], position: int) -> tuple[list[Place], Tensor, list[Row]]:
        """Every layer at a position of a sentence, the model's own scores there, and what attention does in each layer:
        what enters the block, what attention adds, and the weights `[head, column]` of the position.
        """
        key = (tuple(tokens), position)
        if key in self._kept:
            return self._kept[key]
        column, seen = position + 1, dict[tuple[str, int], Tensor]()

        def note(name: str, layer: int, found: Any) -> None:
            tensor = found[0] if isinstance(found, tuple) else found
            seen[name, layer] = tensor.reshape(-1, tensor.shape[-1])[column].clone()

        hooks = []
        for layer in range(self.layers):
            block = self._block(layer)
            hooks.append(
                self.downs[layer].register_forward_pre_hook(lambda _, i, layer=layer: note("coefficients", layer, i))
            )
            hooks.append(block.register_forward_hook(lambda _, i, out, layer=layer: note("output", layer, out)))
            hooks.append(
                block.register_forward_pre_hook(
                    lambda _, i, k, layer=layer: note("input", layer, i or k["hidden_states"]), with_kwargs=True
                )
            )
            names = (f"{self._blocks[layer]}.{name}" for name in ("attention.output.dense", "attn.Wo"))
            adding = next(self._names[name] for name in names if name in self._names)
            hooks.append(adding.register_forward_hook(lambda _, i, out, layer=layer: note("attention", layer, out)))
            if self._post_norm(layer) is not None:
                norm = self._post_norm(layer)
                hooks.append(norm.register_forward_pre_hook(lambda _, i, layer=layer: note("sum", layer, i)))
        made = self.hf(input_ids=self.framed(tokens), output_attentions=True)
        for hook in hooks:
            hook.remove()
        places, attention = [], []
        for layer in range(self.layers):
            coefficients, output = seen["coefficients", layer], seen["output", layer]
            bias = self.downs[layer].bias
            update = coefficients @ self.values(layer) + (0 if bias is None else bias)
            total = seen.get(("sum", layer), output)
            places.append(Place(total - update, coefficients, update, output, update))
            rows = made.attentions[layer][0, :, column]
            attention.append({"input": seen["input", layer], "added": seen["attention", layer], "rows": rows})
        self._kept[key] = places, made.logits[0, column], attention
        return self._kept[key]


class WholeReference(Reference):
    """The coefficients of every mined sentence, read whole within its frame."""

    spoken_of = "token"

    def __init__(self, slow: SlowMasked, sentences: list[Sentence]) -> None:
        self.sentences, self.slow, self.first = sentences, slow, 0
        self.mined, self.layers = list(range(len(sentences))), slow.layers
        self.coefficients = [
            {
                number: np.array(
                    [slow.at(one.tokens, j)[0][layer].coefficients.tolist() for j in range(len(one.tokens))]
                )
                for number, one in enumerate(sentences)
            }
            for layer in range(slow.layers)
        ]

    def context(self, tokens: list[int], position: int) -> tuple[int, ...]:
        """What makes two triggers of one group: here the whole sentence, and the position in it."""
        return (*tokens, -1, position)


def check_own_coefficients(atlas: Path, reference: WholeReference, layer: int) -> int:
    """Asserts the column `own_coefficient`: of the trigger that gives the target, else null. Returns how many."""
    slow, rows = reference.slow, pl.read_parquet(atlas / f"triggers/layer-{layer:03d}.parquet").rows(named=True)
    assert isinstance(slow, SlowMasked)
    best: dict[int, list[Row]] = {}
    for row in rows:
        if row["sign"] == 1:
            best.setdefault(row["memory"], []).append(row)
    chosen = {}
    for memory, own in best.items():
        most = max(row["coefficient"] for row in own)
        tied = [row for row in own if most - row["coefficient"] < tie(most)]
        chosen[memory] = min(tied, key=lambda row: (row["sentence"], row["rank"]))["rank"]
    for row in rows:
        found = row["own_coefficient"]
        if row["sign"] != 1 or row["rank"] != chosen[row["memory"]]:
            assert found is None
            continue
        tokens = slow.masked(reference.sentences[row["sentence"]].tokens, row["position"])
        expected = float(slow.at(tokens, row["position"])[0][layer].coefficients[row["memory"]])
        assert abs(found - expected) <= tie(expected), f"L{layer}.M{row['memory']}: {found}, reference {expected}"
    return len(chosen)


def check_masked_removals(atlas: Path, slow: SlowMasked, sentences: list[Sentence], *, seed: int) -> dict[str, int]:
    """Asserts `removals` of an atlas that was asked of all memories; gives how many triggers are too short."""
    left_out = {"length_one": 0, "length_two": 0}
    expected = []
    for layer in range(slow.layers):
        for row in pl.read_parquet(atlas / f"triggers/layer-{layer:03d}.parquet").rows(named=True):
            if row["sign"] != 1 or row["rank"] >= 50:
                continue
            memory, j, tokens = row["memory"], row["position"], sentences[row["sentence"]].tokens
            if len(tokens) < 3:
                left_out["length_one" if len(tokens) == 1 else "length_two"] += 1
                continue
            others = [k for k in range(len(tokens)) if k != j]
            hashed = hashlib.blake2b(
                struct.pack("<5q", seed, layer, memory, row["sentence"], j), digest_size=8
            ).digest()
            drawn = others[int.from_bytes(hashed, "little") % len(others)]
            own = () if slow.mask is None else (("own", j),)
            for kind, k in (*own, ("first", others[0]), ("last", others[-1]), ("random", drawn)):
                left = slow.masked(tokens, j) if kind == "own" else tokens[:k] + tokens[k + 1 :]
                now = j - (k < j)
                after = float(slow.at(left, now)[0][layer].coefficients[memory])
                before = float(slow.at(tokens, j)[0][layer].coefficients[memory])
                expected.append(
                    {
                        **{"layer": layer, "memory": memory, "sign": 1, "trigger_rank": row["rank"], "position": j},
                        **{"removed": kind, "removed_position": k, "coefficient": before, "removed_coefficient": after},
                    }
                )
    found = pl.read_parquet(atlas / "removals.parquet").rows(named=True)
    assert len(found) == len(expected)
    for row, wanted in zip(found, expected, strict=True):
        for name, value in wanted.items():
            same = abs(row[name] - value) <= tie(value) if isinstance(value, float) else row[name] == value
            assert same, f"{row}: {name}, reference {wanted}"
        assert set(row) == set(wanted)
    return left_out


def check_masked_predictions(atlas: Path, slow: SlowMasked, text: Mapping[int, list[int]]) -> list[Row]:
    """Asserts `prefixes`, `predictions` and `attention` of held-out sentences (by id), each with one token masked;
    returns the rows of predictions.
    """
    prefixes = pl.read_parquet(atlas / "prefixes.parquet").rows(named=True)
    mined = pl.read_parquet(atlas / "predictions.parquet").rows(named=True)
    beside = pl.read_parquet(atlas / "attention.parquet").rows(named=True)
    assert {row["sentence"] for row in prefixes} == {number for number, tokens in text.items() if len(tokens) > 1}
    assert len(prefixes) == len({row["sentence"] for row in prefixes})
    predictions, rows = Predictions(slow), []
    for prefix in prefixes:
        tokens, j = text[prefix["sentence"]], prefix["position"]
        assert prefix["next_token"] == tokens[j], "the target is the token that was masked"
        places, scores, attention = slow.at(slow.masked(tokens, j), j)
        assert prefix["final_top"] in tops(scores)
        number = prefix["prefix"] * slow.layers
        for layer, place in enumerate(places):
            found = mined[number + layer]
            rows.append(predictions.row(layer, place, prefix["final_top"], prefix["literal_final_top"], found))
        _check_attention(beside[number : number + slow.layers], slow, places, attention, scores, prefix)
    assert len(mined) == len(beside) == len(rows)
    return rows


def _check_attention(
    found: list[Row], slow: SlowMasked, places: list[Place], attention: list[Row], scores: Tensor, prefix: Row
) -> None:
    def near(one: float, other: float) -> bool:
        return abs(one - other) <= 1e-4 * max(1.0, abs(other))

    logit, separable = float(scores[prefix["final_top"]]), slow.hf.config.model_type != "deberta-v2"
    for row, place, seen in zip(found, places, attention, strict=True):
        assert (row["prefix"], near(row["final_logit"], logit)) == (prefix["prefix"], True)
        assert near(row["ffn_norm"], float(place.update.norm()))
        assert row["input_top"] in tops(slow.lens(seen["input"]))
        if not separable:  # its attention hands on no weights, so it is not found, and is in the rest
            assert {row[name] for name in row if name.startswith("attend") or name.startswith("attention")} == {None}
            continue
        attended = [math.exp(-sum(p * math.log(p) for p in weights if p > 0)) for weights in seen["rows"].tolist()]
        assert near(row["attended"], sum(attended) / len(attended))
        assert near(row["attention_norm"], float(seen["added"].norm()))
        assert row["attention_top"] in tops(slow.lens(seen["added"]))
    parts = [row[f"{name}_logit"] or 0.0 for row in found for name in ("attention", "ffn")]
    parts += [found[0][f"{name}_logit"] for name in ("embedding", "rest", "bias")]
    assert abs(sum(parts) - logit) <= 1e-4 * max(1.0, *map(abs, parts))
