"""What an atlas of a mixture of experts must say, by the loop of `expert_models.HandRead`, a sentence at a time.

The brute-force reference of dense models is filled with the loop's numbers, memories counted through the experts; an
atlas is made flat in the same way by `flattened`, which only adds numbers up. Which prefixes count for a routed memory
is looked at here.
"""

import copy
import re
import shutil
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from mining.agreement import assert_neighbours, assert_text_tables, assert_triggers, assert_values, tie
from mining.reference import Reference, Sentence
from mining.slow_model import Place, SlowTransformer
from models.expert_models import EXPERTS, WIDTH, HandRead, blocks_of, inner_of


class ExpertReference(Reference):
    """`weights[layer][sentence]` is `[position, expert]`; `close` are prefixes whose routing hangs by a hair."""

    def __init__(self, hf: Any, name: str, sentences: list[Sentence], *, beginning: int | None) -> None:
        self.hf, self.sentences, self.hand = hf, sentences, HandRead(hf, name)
        self.slow = SlowMixture(hf, name, beginning=beginning)
        self.first = 1 if beginning is None else 0
        self.mined = [number for number, sentence in enumerate(sentences) if not sentence.held_out]
        self.layers = len(blocks_of(hf))
        self.coefficients = [{} for _ in range(self.layers)]
        self.weights: list[dict[int, np.ndarray]] = [{} for _ in range(self.layers)]
        extra = [] if beginning is None else [beginning]
        for number in self.mined:
            found, weights = self.hand.read(extra + sentences[number].tokens)
            for layer in range(self.layers):
                self.coefficients[layer][number] = found[layer][len(extra) :].numpy()
                self.weights[layer][number] = weights[layer][len(extra) :].numpy()

    def routed(self, layer: int) -> np.ndarray:
        """The weights `[prefix, expert]` of all prefixes that count."""
        return np.concatenate([self.weights[layer][n][self.first :] for n in self.mined])


def flattened(atlas: Path, hand: HandRead, out: Path) -> Path:
    """A copy of the atlas whose memories are counted through their layer's experts."""
    shutil.copytree(atlas, out)
    firsts = cache(lambda layer: [0, *accumulate(hand.widths(layer))])
    for path in sorted(out.rglob("*.parquet")):
        table = pl.read_parquet(path)
        if "expert" not in table.columns or path.stem == "routing":
            continue
        own = int(path.stem.rpartition("-")[2]) if path.stem.startswith("layer-") else None
        for layer, expert, memory in (("layer", "expert", "memory"), ("other_layer", "other_expert", "other_memory")):
            if memory in table.columns:
                rows = table.select(
                    pl.lit(own).alias("l") if layer not in table.columns else pl.col(layer).alias("l"),
                    pl.col(expert).alias("e"),
                    pl.col(memory).alias("m"),
                ).rows()
                flat = [m if e is None else firsts(at)[e] + m for at, e, m in rows]
                table = table.with_columns(pl.Series(memory, flat, dtype=pl.Int32))
        table.drop("expert", "other_expert", strict=False).write_parquet(path)
    return out


def assert_mixture(atlas: Path, reference: ExpertReference, scratch: Path, *, keep: int, vocabulary: int) -> None:
    """Every table of the pass over the text and of the values; nothing that the model left at a router's edge."""
    flat = flattened(atlas, reference.hand, scratch)
    layers = range(reference.layers)
    for layer in layers:
        assert_triggers(flat, reference, layer, keep=keep, signs=(1, -1) if reference.hand.case.gated else (1,))
        assert_values(flat, reference, layer)
        _assert_router_weights(atlas, reference, layer)
        _assert_activity(atlas, reference, layer)
    assert_neighbours(flat, reference, layers)
    assert_text_tables(flat, reference, vocabulary=vocabulary)
    _assert_routing(atlas, reference)


def _assert_router_weights(atlas: Path, reference: ExpertReference, layer: int) -> None:
    table = pl.read_parquet(atlas / f"triggers/layer-{layer:03d}.parquet")
    assert table.columns[:2] == ["expert", "memory"]
    if layer in reference.hand.case.dense:
        assert table["expert"].null_count() == table["router_weight"].null_count() == table.height
        return
    for row in table.iter_rows(named=True):
        weight = reference.weights[layer][row["sentence"]][row["position"], row["expert"]]
        assert abs(weight - row["router_weight"]) <= 1e-5, row


def _assert_activity(atlas: Path, reference: ExpertReference, layer: int) -> None:
    table = pl.read_parquet(atlas / f"activity/layer-{layer:03d}.parquet")
    whole, routed, widths = reference.everything(layer), reference.routed(layer), reference.hand.widths(layer)
    assert set(table["all_prefixes"]) == {len(whole)}
    dense, column = layer in reference.hand.case.dense, 0
    rows = iter(table.iter_rows(named=True))
    for expert, width in enumerate(widths):
        shared = dense or (reference.hand.case.shared is not None and expert == len(widths) - 1)
        own = whole if shared else whole[routed[:, expert] != 0]
        for memory in range(width):
            row, x = next(rows), own[:, column]
            assert (row["expert"], row["memory"]) == (None if dense else expert, memory)
            assert row["prefixes"] == row["sampled"] == len(own)
            assert sum(row["histogram"]) == len(own)
            assert (x > 1e-5).sum() <= row["positive"] <= (x > -1e-5).sum()
            for name, number in {"mean": x.mean(), "min": x.min(), "max": x.max(), "std": x.std()}.items():
                assert abs(row[name] - number) <= tie(number), f"L{layer} {expert} {memory}: {name}"
            column += 1
    assert next(rows, None) is None


def _assert_routing(atlas: Path, reference: ExpertReference) -> None:
    table = pl.read_parquet(atlas / "routing.parquet")
    expected = []
    for layer in reference.hand.moe:
        weights, experts = reference.routed(layer), 4
        first = weights[:, :experts].argmax(1)
        for expert in range(weights.shape[1]):
            shared = expert >= experts
            tokens = len(weights) if shared else int((weights[:, expert] != 0).sum())
            chosen = 0 if shared else int((first == expert).sum())
            expected.append((layer, expert, tokens, float(weights[:, expert].astype(float).sum()), chosen))
    assert table.columns == ["layer", "expert", "tokens", "weight_sum", "first_choice"]
    for row, wanted in zip(table.rows(), expected, strict=True):
        assert row[:3] == wanted[:3]
        assert abs(row[3] - wanted[3]) <= 1e-5 * max(1.0, wanted[3])
        assert row[4] == wanted[4]


class SlowMixture(SlowTransformer):
    """The slow model of a mixture, in float64: coefficients by the loop, blocks by plain hooks."""

    def __init__(self, hf: Any, name: str, *, beginning: int | None) -> None:
        self.hf, self.beginning = copy.deepcopy(hf).double(), beginning
        self.hf.config._experts_implementation = "eager"  # others do not multiply in float64
        self.hand = HandRead(self.hf, name)
        self._names = dict(self.hf.named_modules())
        self.layers = len(blocks_of(self.hf))
        self._blocks = [path for path in self._names if re.fullmatch(r"(model\.layers|transformer\.blocks)\.\d+", path)]
        self._final, self._project = inner_of(self.hf).get_submodule(self.hand.case.final_norm), None
        self._transform = None

    def values(self, layer: int) -> Tensor:
        return self.hand.values(layer)

    def _block(self, layer: int) -> Any:
        return blocks_of(self.hf)[layer]

    def branch(self, memory: int) -> int:
        """Which norm is behind a memory: 1 of the shared expert's, where that has its own."""
        return int(self.hand.case.behind is not None and memory >= EXPERTS * WIDTH)

    def _behind(self, layer: int, branch: int) -> tuple[Any, ...]:
        paths = self.hand.case.behind
        return () if paths is None else (blocks_of(self.hf)[layer].get_submodule(paths[branch]),)

    def _written(self, layer: int, coefficients: Tensor) -> Tensor:
        """What the layer gives, without biases."""
        values, edge = self.values(layer), EXPERTS * WIDTH
        if self.hand.case.behind is None:
            return coefficients @ values
        sums = coefficients[:edge] @ values[:edge], coefficients[edge:] @ values[edge:]
        return sum(self._behind(layer, branch)[0](own[None])[0] for branch, own in enumerate(sums))

    def _biases(self, layer: int, weights: Tensor) -> Tensor | float:
        """What the layer adds to its values' sum, by the routers' `weights [expert]`."""
        case, block = self.hand.case, self._block(layer)
        if layer in case.dense:
            return 0.0
        total: Tensor | float = 0.0
        if (own := getattr(block.get_submodule(case.experts), "down_proj_bias", None)) is not None:
            total = total + weights[:EXPERTS] @ own
        later = [] if case.shared is None else [block.get_submodule(f"{case.shared}.{case.down}")]
        later += [] if case.narrow is None else [block.get_submodule(case.narrow[1])]
        return sum((each.bias for each in later if each.bias is not None), start=total)

    @torch.no_grad()
    def read(self, tokens: list[int]) -> tuple[list[Place], Tensor]:
        ids = [*([] if self.beginning is None else [self.beginning]), *tokens]
        outputs: list[Tensor] = []

        def note(_: Any, inputs: Any, out: Any) -> None:
            outputs.append((out[0] if isinstance(out, tuple) else out).reshape(len(ids), -1)[-1])

        hooks = [block.register_forward_hook(note) for block in blocks_of(self.hf)]
        logits = self.hf(input_ids=torch.tensor([ids])).logits[0, -1]
        for hook in hooks:
            hook.remove()
        places = []
        for layer, (coefficients, weights, output) in enumerate(zip(*self.hand.read(ids), outputs, strict=True)):
            update = ffn_output = self._written(layer, coefficients[-1]) + self._biases(layer, weights[-1])
            output = output / getattr(self._block(layer), "layer_scalar", 1.0)
            if self.sandwich_norm(layer) is not None:
                update = self.sandwich_norm(layer)(update[None])[0]
            update = update * getattr(self.hf.config, "residual_multiplier", 1.0)
            places.append(Place(output - update, coefficients[-1], update, output, ffn_output))
        return places, logits
