"""Cross-attention as a part of its own: the table `attention` of encoder-decoders against a slow reference."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor, nn

import mnemoscope as ms
from mining.test_pairs import as_words, some_pairs, write_pairs
from mnemoscope.atlas import open_atlas, verify
from mnemoscope.questions import answer
from mnemoscope.questions.answers import answers_with
from mnemoscope.show.figures.chart import Figure
from mnemoscope.show.figures.sections import draw_figure
from models.pair_models import PAIR_MODELS, build_pair_model, pair_tokenizer

KINDS = ("", "_mean", "_other", "_next", "_other_next")


class Parts(NamedTuple):
    """The modules of a decoder's block, by path: both attentions, the map out of the feed-forward layer, and of a
    post-norm block the norms behind them in this order; and the norm before the head.
    """

    attention: str
    cross: str
    down: str
    norms: tuple[str, ...]
    final: str


_BART = ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm")
_T5 = ("layer.0.SelfAttention", "layer.1.EncDecAttention", "layer.2.DenseReluDense.wo", ())
PARTS = {
    "t5": Parts(*_T5, "decoder.final_layer_norm"),
    "gated t5": Parts(*_T5, "decoder.final_layer_norm"),
    "bart": Parts("self_attn", "encoder_attn", "fc2", _BART, ""),
    "marian": Parts("self_attn", "encoder_attn", "fc2", _BART, ""),
    "m2m_100": Parts("self_attn", "encoder_attn", "fc2", (), "model.decoder.layer_norm"),
}


class SlowCross:
    """The model itself in float64, one pair and one position at a time, with plain hooks."""

    def __init__(self, kind: str, hf: Any) -> None:
        self.kind, self.parts = kind, PARTS[kind]
        self.hf = hf.double()
        self.framed, self.start = ([] if "t5" in kind else [1]), PAIR_MODELS[kind].start
        self.blocks = list(hf.get_submodule(PAIR_MODELS[kind].blocks))
        self.final = hf.get_submodule(self.parts.final) if self.parts.final else nn.Identity()
        self.head = hf.lm_head.weight.detach()
        self.bias = getattr(hf, "final_logits_bias", torch.zeros(1, len(self.head))).double()[0]

    @torch.no_grad()
    def read(self, source: list[int], target: list[int]) -> Tensor:
        """The logits at the last token; `seen` has what each module reads and gives there."""
        self.seen: dict[str, tuple[Tensor, Tensor]] = {}
        hooks = []

        def note(name: str, _: nn.Module, given: Any, named: Any, output: Any) -> None:
            taken = given[0] if given else named["hidden_states"]
            made = output[0] if isinstance(output, tuple) else output
            self.seen[name] = tuple(each.reshape(-1, each.shape[-1])[-1].clone() for each in (taken, made))

        modules = {"final": self.final, "head": self.hf.lm_head}
        for layer, block in enumerate(self.blocks):
            modules[f"{layer}"] = block
            for path in (self.parts.attention, self.parts.cross, self.parts.down, *self.parts.norms):
                modules[f"{layer}.{path}"] = block.get_submodule(path)
        for name, module in modules.items():
            hooks.append(module.register_forward_hook(partial(note, name), with_kwargs=True))
        ids = torch.tensor([[*self.start, *target]])
        made = self.hf(input_ids=torch.tensor([[*self.framed, *source, 2]]), decoder_input_ids=ids, use_cache=False)
        for hook in hooks:
            hook.remove()
        return made.logits[0, -1]

    def added(self, layer: int, path: str) -> Tensor:
        return self.seen[f"{layer}.{path}"][1]

    @torch.no_grad()
    def scores(self, vector: Tensor) -> Tensor:
        """What the model's own head says of a stream."""
        return self.times * self.final(vector) @ self.head.T + self.bias

    @property
    def times(self) -> float:
        """What T5 multiplies the stream by before its head."""
        read, given = self.seen["head"][0], self.seen.get("final", self.seen["head"])[1 if "final" in self.seen else 0]
        return float((read @ given) / (given @ given))

    @torch.no_grad()
    def split(self, direction: Tensor, bias: float) -> dict[str, Any]:
        """What each vector adds to `direction . (what the head reads) + bias`, every norm linear at its scale."""
        found: dict[str, Any] = {"attention": [], "cross_attention": [], "ffn": []}
        function = direction * self.times
        if self.parts.final:
            function, more = self._before("final", self.final, function)
            bias += more
        for layer in reversed(range(len(self.blocks))):
            names = reversed([self.parts.attention, self.parts.cross, self.parts.down])
            norms = reversed(self.parts.norms or ("", "", ""))
            for part, path, norm in zip(("ffn", "cross_attention", "attention"), names, norms, strict=True):
                if norm:
                    module = self.blocks[layer].get_submodule(norm)
                    function, more = self._before(f"{layer}.{norm}", module, function)
                    bias += more
                found[part].insert(0, float(function @ self.added(layer, path)))
        return found | {"embedding": float(function @ self.seen["0"][0]), "bias": bias}

    def _before(self, name: str, norm: Any, function: Tensor) -> tuple[Tensor, float]:
        read = self.seen[name][0]
        if "t5" in self.kind:
            scale = float((read.square().mean() + norm.variance_epsilon).sqrt())
            return function * norm.weight / scale, 0.0
        scale = float((read.var(unbiased=False) + norm.eps).sqrt())
        inner = function * norm.weight / scale
        return inner - inner.mean(), float(function @ norm.bias)


def mine(kind: str, hf: Any, folder: Path, **options: Any) -> Path:
    """An atlas of few prefixes, each of another pair."""
    model = ms.load_model(hf, tokenizer=pair_tokenizer(kind))
    texts, held_out = (write_pairs(folder / f"{n}.jsonl", some_pairs(n, n)) for n in (20, 12))
    named = {"source_field": "from", "text_field": "to", "validation": held_out, "progress": False, "removals": 0}
    ms.mine(model, texts, out=folder / "atlas", **{"triggers": 2, "neighbours": 0, "seed": 3} | named | options)
    return folder / "atlas"


def drawn(out: Path) -> Figure:
    return draw_figure("attention_share", answers_with(open_atlas(out), "attention_share"))


def near(found: float, expected: float, size: float = 1.0) -> bool:
    """float32 against float64."""
    return abs(found - expected) <= 1e-4 * max(1.0, abs(size))


def asked(out: Path, slow: SlowCross) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]], Tensor]]:
    """Each prefix with its rows of `attention`, once the reference has read it."""
    sentences = {row["sentence"]: row for row in pl.read_parquet(out / "sentences/*.parquet").rows(named=True)}
    rows = pl.read_parquet(out / "attention.parquet").sort("prefix", "layer").rows(named=True)
    prefixes = pl.read_parquet(out / "prefixes.parquet").rows(named=True)
    assert len(prefixes) > 4
    for prefix in prefixes:
        row = sentences[prefix["sentence"]]
        source = row["source_tokens"][len(slow.framed) : -1]
        logits = slow.read(source, row["tokens"][: prefix["position"] + 1])
        yield prefix, [each for each in rows if each["prefix"] == prefix["prefix"]], logits


@pytest.mark.fast(2)
@pytest.mark.parametrize("kind", ["t5", "bart", "gated t5", "marian", "m2m_100"])
def test_every_part_is_the_slow_models(kind: str, tmp_path: Path) -> None:
    out = mine(kind, build_pair_model(kind), tmp_path)
    assert verify(out) == []
    slow, layers = SlowCross(kind, build_pair_model(kind)), range(2)
    for prefix, own, logits in asked(out, slow):
        tokens = (prefix["final_top"], None, own[0]["other_top"], prefix["next_token"], own[0]["other_next_token"])
        for name, token in zip(KINDS, tokens, strict=True):
            direction = slow.head.mean(0) if token is None else slow.head[token]
            parts = slow.split(direction, float(slow.bias.mean() if token is None else slow.bias[token]))
            every = [*parts["attention"], *parts["cross_attention"], *parts["ffn"], parts["embedding"], parts["bias"]]
            logit, size = float(logits.mean() if token is None else logits[token]), max(map(abs, every))
            assert near(sum(every), logit, size)
            for part in ("attention", "cross_attention", "ffn"):
                for layer in layers:
                    assert near(own[layer][f"{part}_logit{name}"], parts[part][layer], size), (part, layer, name)
            if "next" not in name:
                for part in ("embedding", "bias"):
                    assert near(own[0][f"{part}_logit{name}"], parts[part], size)
                assert near(own[0][f"final_logit{name}"], logit, size)
                assert near(own[0][f"rest_logit{name}"], 0, size)
        for layer in layers:
            alone, crossing, fed = (slow.added(layer, path) for path in slow.parts[:3])
            before = slow.seen[f"{layer}"][0]
            between = slow.seen[f"{layer}.{slow.parts.norms[0]}"][1] if slow.parts.norms else before + alone
            for name, vector in (("attention", alone), ("cross_attention", crossing), ("ffn", fed)):
                assert near(own[layer][f"{name}_norm"], float(vector.norm()))
            for name, stream in (
                *(("input_top", before), ("attention_top", alone), ("cross_input_top", between)),
                *(("cross_attention_top", crossing),),
            ):
                scores = slow.scores(stream)
                assert float(scores.max() - scores[own[layer][name]]) < 1e-4, name
    total = dict(answer(out, "attention_share").filter(pl.col("layer").is_null()).select("name", "value").iter_rows())
    shares = [total[f"{part}_share"] for part in ("attention", "cross_attention", "ffn", "embedding", "bias", "rest")]
    assert sum(shares) == pytest.approx(1, abs=1e-5)
    assert max(total["unaccounted"], abs(total["rest_share"])) < 1e-6
    figure = drawn(out)
    assert "Cross-attention is told from self-attention in 100\xa0% of the layers" in figure.axes
    assert "cross-attention's" in figure.reading
    assert [row[0].text for row in figure.tables[0].rows][1:4] == [
        f"{part}, all layers" for part in ("attention", "cross-attention", "feed-forward")
    ]
    assert "cross-attention" in {row["series"] for row in figure.panels[0].rows["attention_share"]}


@pytest.mark.parametrize("kind", ["t5", "bart"])
@pytest.mark.parametrize("silent", ["attention", "cross_attention"])
def test_an_attention_that_writes_nothing_has_no_part(kind: str, silent: str, tmp_path: Path) -> None:
    hf = build_pair_model(kind)
    path = PARTS[kind].attention if silent == "attention" else PARTS[kind].cross
    for block in hf.get_submodule(PAIR_MODELS[kind].blocks):
        for weight in block.get_submodule(f"{path}.{'o' if kind == 't5' else 'out_proj'}").parameters():
            weight.data.zero_()
    out = mine(kind, hf, tmp_path)
    rows = pl.read_parquet(out / "attention.parquet")
    other = {"attention": "cross_attention", "cross_attention": "attention"}[silent]
    for name in ("norm", *(f"logit{kind}" for kind in KINDS)):
        assert rows[f"{silent}_{name}"].abs().max() < 1e-6
        assert rows[f"{other}_{name}"].abs().max() > 1e-2
    total = dict(answer(out, "attention_share").filter(pl.col("layer").is_null()).select("name", "value").iter_rows())
    assert total[f"{silent}_share"] == pytest.approx(0, abs=1e-6)
    if kind == "t5":  # in BART the norm behind it still changes the stream
        assert total[f"{silent}_changed"] == total[f"{silent}_moves"] == 0
    assert abs(total[f"{other}_share"]) > 1e-3


def test_a_prompts_attention_is_both() -> None:
    """What a trace, an attribution and a captured stream call attention."""
    source, text = [5, 6, 7], [9, 8, 17]
    model = ms.load_model(build_pair_model("bart"), tokenizer=pair_tokenizer("bart"))
    slow = SlowCross("bart", build_pair_model("bart"))
    logits = slow.read(source, text)
    captured = model.with_source(as_words(source)).capture(as_words(text), ["attention"], at="last")
    for layer in (0, 1):
        both = slow.added(layer, "self_attn") + slow.added(layer, "encoder_attn")
        np.testing.assert_allclose(captured["attention", layer][0], both.numpy(), atol=1e-4)
    first, second = logits.topk(2).indices.tolist()
    parts = slow.split(slow.head[first] - slow.head[second], float(slow.bias[first] - slow.bias[second]))
    attribution = ms.attribute(model, as_words(text), source=as_words(source), progress=False)
    sums = ms.trace(model, as_words(text), source=as_words(source), memories=2).logits[-1]
    top = slow.split(slow.head[first], float(slow.bias[first]))
    assert max(attribution.layers["other"].abs().max(), abs(sums.rest)) < 1e-4
    for layer, row in enumerate(attribution.layers.rows(named=True)):
        assert near(row["attention"], parts["attention"][layer] + parts["cross_attention"][layer])
        assert near(sums.layers[layer].attention, top["attention"][layer] + top["cross_attention"][layer])


def hide(block: nn.Module) -> None:
    """The block's cross-attention reads the source by itself, so that no module is seen to do it."""
    attention = block.get_submodule("layer.1.EncDecAttention")
    for name in ("k", "v"):
        weight = attention._modules.pop(name).weight
        setattr(attention, f"hidden_{name}", weight)
        setattr(attention, name, partial(nn.functional.linear, weight=weight))


@pytest.mark.parametrize("layers", [(1,), (0, 1)])
def test_a_block_that_is_not_recognised_keeps_both_in_attention(layers: tuple[int, ...], tmp_path: Path) -> None:
    hf, slow = build_pair_model("t5"), SlowCross("t5", build_pair_model("t5"))
    for layer in layers:
        hide(hf.decoder.block[layer])
    out = mine("t5", hf, tmp_path)
    assert verify(out) == []
    for prefix, own, _ in asked(out, slow):
        parts = slow.split(slow.head[prefix["final_top"]], 0.0)
        for layer, row in enumerate(own):
            both = parts["attention"][layer], parts["cross_attention"][layer]
            assert near(row["attention_logit"], sum(both) if layer in layers else both[0])
            if len(layers) == 1:
                crossing = [value for name, value in row.items() if name.startswith("cross_")]
                assert [value is None for value in crossing] == [layer in layers] * 8
            else:
                assert not [name for name in row if name.startswith("cross_")]
    table = answer(out, "attention_share")
    total = dict(table.filter(pl.col("layer").is_null()).select("name", "value").iter_rows())
    assert total["cross_attention_told"] == 1 - len(layers) / 2
    assert ("cross_attention_share" in total) == (len(layers) == 1)
    assert total["unaccounted"] < 1e-6
    figure = drawn(out)
    assert f"from self-attention in {'50.0' if len(layers) == 1 else '0'}\xa0% of the layers" in figure.axes
    assert ("cross-attention's" in figure.reading) == (len(layers) == 1)
