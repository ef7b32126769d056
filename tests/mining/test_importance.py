"""The table `importance` against one prefix at a time with plain hooks in float64; stops, halves, other heads."""

import copy
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import mnemoscope as ms
from mining.conftest import assert_goes_on, load_bytes, odd_text
from mnemoscope.atlas import open_atlas, verify
from mnemoscope.errors import ModelUnsupported
from mnemoscope.mining import mine
from mnemoscope.mining.passes import importance
from mnemoscope.mining.passes.importance import ImportancePass
from mnemoscope.models import LanguageModel
from models.conftest import build
from models.expert_models import HandRead, blocks_of, build_mixture
from support.mined import mined_text

OPTIONS: dict[str, Any] = {"split": "line", "triggers": 3, "removals": 0, "neighbours": 0, "batch_tokens": 40}
COLUMNS = ("direct", "attribution")


def atlas_of(hf: Any, folder: Path) -> tuple[LanguageModel, Path]:
    model = load_bytes(hf)
    out = mined_text(model, folder, odd_text(120), **OPTIONS)
    ms.extend(out, model, ["importance"])
    return model, out


class OnePrefix:
    """What every memory does at the last of some tokens: m, its direct effect and its attribution, by layer.

    The attribution is m times what F changes by along the value, behind the layer.
    """

    def __init__(self, hf: Any, name: str, ids: list[int]) -> None:
        hf = copy.deepcopy(hf).requires_grad_(False)
        hf = hf if name == "mixtral" else hf.double()  # its experts multiply no float64
        inner = hf.transformer if name == "gpt2" else hf.model
        blocks, norm = (inner.h, inner.ln_f) if name == "gpt2" else (blocks_of(hf), inner.norm)
        zeros = [torch.zeros(len(ids), hf.config.hidden_size, dtype=hf.dtype, requires_grad=True) for _ in blocks]
        seen: dict[int, Any] = {}
        hooks = [norm.register_forward_pre_hook(lambda _, inputs: seen.__setitem__(-1, inputs[0][0, -1].detach()))]

        def add(layer: int, _: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
            return output + zeros[layer].reshape(output.shape)

        def keep(layer: int, _: Any, inputs: Any) -> None:
            seen[layer] = inputs[0].reshape(len(ids), -1)[-1].detach()

        for layer, block in enumerate(blocks):
            hooks.append(block.mlp.register_forward_hook(partial(add, layer)))
            if name != "mixtral":
                down = block.mlp.c_proj if name == "gpt2" else block.mlp.down_proj
                hooks.append(down.register_forward_pre_hook(partial(keep, layer)))
        logits = hf(input_ids=torch.tensor([ids])).logits[0, -1]
        self.target, self.against = logits.topk(2)[1].tolist()
        gradients = torch.autograd.grad(logits[self.target] - logits[self.against], zeros)
        for hook in hooks:
            hook.remove()
        hand = HandRead(hf, name) if name == "mixtral" else None
        head = hf.get_output_embeddings().weight
        read = (head[self.target] - head[self.against]) * norm.weight
        stream = seen[-1]
        if name == "gpt2":
            read = (read - read.mean()) / (stream.var(correction=0) + norm.eps).sqrt()
        else:
            read = read / (stream.square().mean() + norm.variance_epsilon).sqrt()
        self.direct, self.attribution = list[np.ndarray](), list[np.ndarray]()
        for layer, block in enumerate(blocks):
            if hand is not None:
                m, values = hand.read(ids)[0][layer][-1], hand.values(layer)
            else:
                m = seen[layer]
                values = block.mlp.c_proj.weight if name == "gpt2" else block.mlp.down_proj.weight.T
            self.direct.append((m * (values @ read)).numpy())
            self.attribution.append((m * (values @ gradients[layer][-1])).numpy())

    def largest(self, kind: str) -> list[tuple[int, int]]:
        sizes = {(layer, i): abs(x) for layer, own in enumerate(getattr(self, kind)) for i, x in enumerate(own)}
        return [place for place in sorted(sizes, key=lambda place: -sizes[place])[:20] if sizes[place] > 0]


@pytest.mark.fast(1, full=3)
@pytest.mark.parametrize("name", ["gpt2", "llama", "mixtral"])
def test_every_memory_is_the_slow_models(name: str, tmp_path: Path) -> None:
    hf = build_mixture(name) if name == "mixtral" else build(name)
    _, out = atlas_of(hf, tmp_path)
    prefixes = pl.read_parquet(out / "prefixes.parquet")
    tokens = dict(pl.read_parquet(out / "sentences/*.parquet").select("sentence", "tokens").iter_rows())
    slow = []
    for prefix in prefixes.iter_rows(named=True):
        slow.append(OnePrefix(hf, name, [0, *tokens[prefix["sentence"]][: prefix["position"] + 1]]))
        assert slow[-1].target == prefix["final_top"]
    assert len(slow) > 5
    atlas = open_atlas(out)
    for kind in COLUMNS:
        among = Counter(place for one in slow for place in one.largest(kind))
        for layer in atlas.layers:
            rows = atlas.table("importance", layer=layer).sort("memory")
            found = np.abs([getattr(one, kind)[layer] for one in slow]).mean(0, np.float64)
            assert rows["memory"].to_list() == list(range(len(found)))
            assert set(rows["prefixes"]) == {len(slow)}
            np.testing.assert_allclose(rows[kind], found, rtol=1e-3, atol=1e-5 * found.max())
            counts = [among[layer, memory] / len(slow) for memory in range(len(found))]
            np.testing.assert_allclose(rows[f"{kind}_among_20"], counts, rtol=1e-6)
    assert verify(out) == []


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[LanguageModel, Path]:
    return atlas_of(build("gpt2"), tmp_path_factory.mktemp("made"))


def files(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((out / "importance").iterdir())}


@pytest.mark.full
def test_stopped_and_gone_on_with_gives_the_same_bytes(made: tuple[LanguageModel, Path], monkeypatch: Any) -> None:
    model, out = made
    assert_goes_on(monkeypatch, out, model, "importance", ImportancePass, step="read")


@pytest.mark.full
def test_a_batch_taken_in_halves_counts_each_prefix_once(made: tuple[LanguageModel, Path], monkeypatch: Any) -> None:
    model, out = made
    before, asked = files(out), importance.coefficient_gradients

    def fail(model: LanguageModel, ids: torch.Tensor, *more: Any, **named: Any) -> Any:
        if len(ids) > 1:
            raise MemoryError
        return asked(model, ids, *more, **named)

    one = [open_atlas(out).table("importance", layer=layer) for layer in (0, 1)]
    monkeypatch.setattr(importance, "coefficient_gradients", fail)
    ms.extend(out, model, ["importance"], force=True)
    for layer, rows in enumerate(one):
        other = open_atlas(out).table("importance", layer=layer)
        assert set(other["prefixes"]) == set(rows["prefixes"])
        for name in COLUMNS:
            np.testing.assert_allclose(other[name], rows[name], rtol=1e-4, atol=1e-7)
            np.testing.assert_allclose(other[f"{name}_among_20"], rows[f"{name}_among_20"], rtol=1e-6)
    monkeypatch.undo()
    ms.extend(out, model, ["importance"], force=True)
    assert files(out) == before


@pytest.mark.full
def test_some_layers_and_no_prefixes(made: tuple[LanguageModel, Path], tmp_path: Path) -> None:
    """The 20 largest are those of the network, of which only layer 1 was mined; without prefixes there are no rows."""
    model, out = made
    (tmp_path / "text.txt").write_text(odd_text(120))
    for name, more in (("one", {"layers": "1"}), ("none", {"prefixes": 0})):
        ms.extend(mine(model, tmp_path / "text.txt", out=tmp_path / name, **OPTIONS, **more), model, ["importance"])
    one, whole = (open_atlas(folder).table("importance", layer=1) for folder in (tmp_path / "one", out))
    assert one.equals(whole)
    assert [open_atlas(tmp_path / "none").table("importance", layer=layer).height for layer in (0, 1)] == [0, 0]
    assert set(ms.answer(tmp_path / "none", "importance")["count"]) == {0}
    assert set(files(tmp_path / "one")) == {"layer-001.parquet"}
    assert ms.answer(out, "importance").filter(name="attribution_top", layer=0)["value"].item() > 0


@pytest.mark.full
def test_a_head_that_is_not_one_matrix_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hf = build("gpt2")
    model, out = atlas_of(hf, tmp_path)
    monkeypatch.setattr(model, "linear_head", False)
    with pytest.raises(ModelUnsupported, match="adaptive softmax"):
        ms.extend(out, model, ["importance"], force=True)
    assert "importance" not in ms.extend(out, model, force=True).made
