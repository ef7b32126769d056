"""What keys look for, against loops over the model's own matrices; and how it comes into an atlas, early or late."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from mining.conftest import load_bytes, odd_text, tiny_model
from mnemoscope.atlas import Atlas, open_atlas, verify
from mnemoscope.errors import AtlasUnfinished, Interrupted, ModelDiffers, NotFinite, OptionError
from mnemoscope.foundation.files import json_bytes
from mnemoscope.foundation.options.model_options import AS_USUAL
from mnemoscope.mining import extend, mine
from mnemoscope.mining.extending import load_mined
from mnemoscope.mining.passes.vectors.key_triggers import TOKENS, KeyTriggers
from mnemoscope.mining.passes.vectors.projector import Share
from mnemoscope.mining.passes.vectors.roles import KEPT, RolePass, read_cosines
from mnemoscope.mining.text.circle import deal
from mnemoscope.models import LanguageModel, read_blocks
from mnemoscope.models.readout.read_directions import input_embeddings
from mnemoscope.questions import answer
from mnemoscope.runs.plan import MiningPlan
from models.checkpoints import KINDS, ROWS, Slow, args_of, weights_of, write
from models.conftest import build
from models.key_matrices import READ, Matrices, direction
from support.mined import mined_text


def assert_a_loop_says_the_same(atlas: Atlas, matrices: Callable[[int], Matrices]) -> None:
    """The table of both layers, against each key beside each word."""
    looked_at = 0
    for layer in (0, 1):
        gate, up, gain, words = (None if part is None else part.detach().double().numpy() for part in matrices(layer))
        table, triggers = atlas.table("roles", layer=layer), atlas.table("triggers", layer=layer)
        lasts = {}
        for memory in range(len(gate)):
            own = triggers.filter((pl.col("memory") == memory) & (pl.col("sign") == 1)).sort("rank")
            lasts[memory] = own["token"].to_list()[:25]
        owners = [memory for memory, tokens in lasts.items() if tokens]
        for memory, row in enumerate(table.iter_rows(named=True)):
            r = direction(gate[memory], None if up is None else up[memory], gain)
            r = r - r.mean()
            cosines = [float(np.dot(r, e - e.mean()) / np.linalg.norm(r) / np.linalg.norm(e - e.mean())) for e in words]
            order = sorted(range(len(words)), key=lambda token: (-cosines[token], token))
            assert np.allclose(row["key_top_cosines"], [cosines[token] for token in order[:25]], atol=2e-6)
            assert np.allclose([cosines[token] for token in row["key_top_tokens"]], row["key_top_cosines"], atol=2e-6)
            if not lasts[memory]:
                assert row["trigger_rank"] is None
                assert row["control_rank"] is None
                continue
            looked_at += 1
            assert row["trigger_token"] == lasts[memory][0]
            close = sum(abs(cosines[row["trigger_token"]] - other) < 2e-6 for other in cosines)
            assert abs(row["trigger_rank"] - order.index(row["trigger_token"])) < close
            assert row["trigger_cosine"] == pytest.approx(cosines[row["trigger_token"]], abs=2e-6)
            kept = row["key_top_tokens"]
            among = sum(token in kept for token in lasts[memory]) / len(lasts[memory])
            assert row["triggers_found"] == pytest.approx(among, abs=1e-6)
            # The control: the triggers of one other memory of the layer, under this memory's key.
            assert row["control_token"] in {lasts[other][0] for other in owners if other != memory}
            assert row["control_cosine"] == pytest.approx(cosines[row["control_token"]], abs=2e-6)
        # Each memory's triggers are dealt to exactly one other.
        dealt = table["control_token"].drop_nulls().sort().to_list()
        assert dealt == sorted(lasts[memory][0] for memory in owners)
    assert looked_at > 20


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", list(READ))
def test_cosines_and_ranks_are_those_of_a_loop(name: str, text: Path, tmp_path: Path) -> None:
    hf = build(name)
    out = mine(load_bytes(hf), text, out=tmp_path / "atlas", split="line", triggers=30, prefixes=5, removals=0)
    assert_a_loop_says_the_same(open_atlas(out), lambda layer: READ[name](hf, layer))


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", ["gpt2-relu", "llama", "gpt_neox"])
def test_a_key_and_its_shuffled_self_each_rank_the_token_that_they_point_to_most(
    name: str, text: Path, tmp_path: Path
) -> None:
    """By loops over keys and positions, each sentence read alone; ties within rounding may go either way."""
    hf = build(name)
    model = load_bytes(hf)
    out = mine(model, text, out=tmp_path / "atlas", split="line", triggers=5, prefixes=5, removals=0)
    atlas, inputs, words = open_atlas(out), {0: [], 1: []}, []
    with torch.inference_mode(), read_blocks(model, lambda layer, block: inputs[layer].append(block.ffn_input[0, 1:])):
        for sentence in sorted(set(atlas.table("background")["sentence"].to_list())):
            tokens = atlas.sentences([sentence])["tokens"][0].to_list()
            model.backbone(torch.tensor([[0, *tokens]]))
            words += tokens
    assert len(words) < TOKENS
    plan = MiningPlan.from_document(atlas.manifest.plan, out)
    for layer in (0, 1):
        read = (None if part is None else part.detach().double().numpy() for part in READ[name](hf, layer))
        gate, up, gain, embeddings = read
        x, order = torch.cat(inputs[layer]).double().numpy(), KeyTriggers(model, out, plan).shuffle(layer)
        assert sorted(order) == list(range(len(order))) != list(order)
        centred = embeddings - embeddings.mean(1, keepdims=True)
        centred /= np.linalg.norm(centred, axis=1, keepdims=True)
        table = atlas.table("roles", layer=layer)
        assert not table["text_rank"].equals(table["shuffled_rank"])
        for memory in range(len(gate)):
            for column, places in (("text_rank", slice(None)), ("shuffled_rank", order)):
                keys = [key[memory][places] for key in (gate, up) if key is not None]
                flat = keys[0] if up is None else sum(key / np.linalg.norm(key) for key in keys)
                reached = x @ flat
                r = direction(keys[0], None if up is None else keys[1], gain)
                cosines = centred @ ((r - r.mean()) / np.linalg.norm(r - r.mean()))
                near = {words[place] for place in np.flatnonzero(reached > reached.max() - 1e-5)}
                rank = table[column][memory]
                found = np.sort(-cosines)[[max(0, rank - 1), rank]]  # within rounding of a tie, either
                assert min(abs(found + cosines[word]).min() for word in near) < 1e-5, (layer, memory, column)


@pytest.mark.full
def test_keys_of_a_fairseq_checkpoint_are_asked_for_its_words(text: Path, tmp_path: Path) -> None:
    kind = KINDS["tied"]
    args, weights = args_of(kind), weights_of(kind)
    model, slow = write(tmp_path / "model", args, weights), Slow(args, weights)
    words = torch.stack([slow.embedded(token) for token in range(ROWS)])

    def matrices(layer: int) -> Matrices:
        block = f"decoder.layers.{layer}"
        return weights[f"{block}.fc1.weight"], None, weights[f"{block}.final_layer_norm.weight"], words

    out = mine(model, text, out=tmp_path / "atlas", split="line", triggers=30, prefixes=5, removals=0)
    assert_a_loop_says_the_same(open_atlas(out), matrices)


def test_a_model_whose_words_are_of_another_width_has_no_cosines(text: Path, tmp_path: Path) -> None:
    model = tiny_model("opt-350m")
    out = mine(model, text, out=tmp_path / "atlas", split="line", triggers=5, prefixes=5, removals=0)
    table = open_atlas(out).table("roles", layer=0)
    assert table["key_top_tokens"].list.len().sum() == 0
    assert table["trigger_rank"].null_count() == table.height
    found = answer(open_atlas(out), "key_agreement")
    assert found.filter(pl.col("name") != "chance")["value"].null_count() == 3 * 11 + 2


def test_a_key_that_is_not_finite_is_named(text: Path) -> None:
    hf = build("gpt2-relu")
    model = load_bytes(hf)
    hf.transformer.h[1].mlp.c_fc.weight[:, 3] = float("nan")
    model.usage = None  # nobody sees that it was changed
    last = np.zeros((model.sizes.memories[1], 25), np.int64)
    with pytest.raises(NotFinite, match=r"L1\.M3"):
        RolePass(model, input_embeddings(model)).columns(1, last, last)


def test_the_first_token_of_a_vocabulary_is_a_token_as_any_other() -> None:
    """Token 0 owns triggers, is dealt, and is looked for; -1 stands for none."""
    tokens = np.full((3, KEPT), -1)
    tokens[0, :3], tokens[2, :2] = (0, 7, 29), (5, 0)
    own, dealt = tokens, deal(tokens, 0, 9, 1)
    assert [row[row >= 0].tolist() for row in dealt] == [[5, 0], [], [0, 7, 29]]
    cosine = -torch.arange(30.0)[None].expand(3, -1).contiguous()  # the first 25 are nearest, in their order
    found = read_cosines((own, dealt), Share(0, cosine, None))
    assert (found["trigger_rank"].tolist()[0], found["control_rank"].tolist()[0]) == (0, 5)
    assert found["triggers_found"][[0, 2]].tolist() == pytest.approx([2 / 3, 1])
    assert found["controls_found"][[0, 2]].tolist() == pytest.approx([1, 2 / 3])


def _without(atlas: Path, name: str, out: Path) -> Path:
    """The atlas as a version that knew no such table would have written it."""
    shutil.copytree(atlas, out)
    shutil.rmtree(out / name)
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["files"] = {path: entry for path, entry in manifest["files"].items() if not path.startswith(f"{name}/")}
    data = json_bytes(manifest)
    (out / "manifest.json").write_bytes(data)
    (out / "manifest.sha256").write_text(hashlib.sha256(data).hexdigest() + "\n")
    for name in ("patterns", "labels"):
        (out / f"{name}.parquet").unlink()
    shutil.rmtree(out / "analyses")
    return out


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return tiny_model("gpt2-relu")


@pytest.fixture(scope="module")
def mined(model: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("roles")
    return mined_text(model, folder, odd_text(), triggers=5, prefixes=5, removals=0).path


@pytest.mark.full
def test_an_older_atlas_is_extended_by_the_bytes_that_mining_makes(
    model: LanguageModel, mined: Path, tmp_path: Path
) -> None:
    old = _without(mined, "roles", tmp_path / "old")
    assert verify(old) == []
    with pytest.raises(AtlasUnfinished, match=r"mnemoscope extend .* roles`"):
        answer(open_atlas(old), "key_agreement")
    before = (old / "manifest.json").read_bytes()
    done = extend(old, model)
    assert "roles" in done.made
    assert (old / "manifest.json").read_bytes() == before
    assert verify(old) == []
    assert not (old / "work").exists()
    for layer in (0, 1):
        name = f"roles/layer-00{layer}.parquet"
        assert (old / name).read_bytes() == (mined / name).read_bytes()
    again = extend(old, model, ["roles"])
    assert (again.made, again.kept) == ((), ("roles",))
    assert extend(old, model, ["roles"], force=True).made == ("roles",)
    assert answer(open_atlas(old), "key_agreement").equals(answer(open_atlas(mined), "key_agreement"))
    # What was changed since is named, by verification and by whoever reads it.
    path = old / "roles/layer-001.parquet"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert verify(old) == ["roles/layer-001.parquet: the content is not what was written (its sha256 differs)"]
    path.unlink()
    assert extend(old, model, ["roles"]).made == ("roles",)
    assert verify(old) == []


def test_a_stop_between_two_layers_costs_one_layer(
    model: LanguageModel, mined: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = _without(mined, "roles", tmp_path / "old")
    seen: list[int] = []

    columns = RolePass.columns

    def stop(roles: RolePass, layer: int, *rest: Any) -> dict[str, Any]:
        seen.append(layer)
        if seen == [0, 1]:
            raise KeyboardInterrupt
        return columns(roles, layer, *rest)

    monkeypatch.setattr(RolePass, "columns", stop)
    with pytest.raises(Interrupted, match="run the same command again"):
        extend(old, model, ["roles"])
    with pytest.raises(AtlasUnfinished):
        answer(open_atlas(old), "key_agreement")
    extend(old, model, ["roles"])
    assert seen == [0, 1, 1]
    assert verify(old) == []
    assert (old / "roles/layer-001.parquet").read_bytes() == (mined / "roles/layer-001.parquet").read_bytes()


def test_what_cannot_be_added_is_said_before_anything_is_loaded(mined: Path, model: LanguageModel) -> None:
    with pytest.raises(OptionError, match="'nonsense' is not a table that can be added"):
        extend(mined, "no/such-model", ["nonsense"])
    assert extend(mined, "no/such-model", ["roles"]).kept == ("roles",)
    other = build("gpt2-relu")
    other.transformer.h[0].mlp.c_fc.weight[0, 0] += 1
    changed, half = load_bytes(other), load_bytes(build("gpt2-relu"), dtype="bfloat16")
    atlas = open_atlas(mined)
    plan = MiningPlan.from_document(atlas.manifest.plan, atlas.path)
    for hf, line in ((changed, "with model fingerprint"), (half, r"dtype float32 \(here bfloat16\)")):
        with pytest.raises(ModelDiffers, match=line):
            load_mined(atlas, plan, hf, opening=AS_USUAL)
    assert verify(mined) == []
