"""Encoders without a head (T5's, BART's, BERT as a retriever): keys, removals and activity == loops with transformers.

The slow reading is one forward of the encoder itself a question, with plain hooks, and shares no code with the package.
"""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor
from transformers import AutoModel, T5EncoderModel

import mnemoscope as ms
from mining.agreement import assert_activity, assert_triggers
from mining.masked_reference import WholeReference, check_masked_removals
from mining.reference import Sentence
from mining.test_masked_models import build_masked, draw, written
from mnemoscope.atlas import open_atlas, verify
from mnemoscope.atlas.memory_document import MemoryDocument
from mnemoscope.cli import main
from mnemoscope.errors import ModelDamaged, ModelUnsupported, OptionError
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.foundation.words import KEYS_ONLY
from mnemoscope.mining import extend
from mnemoscope.mining.lenses.lens_pass import fit_lenses
from mnemoscope.questions.answers import write_all
from mnemoscope.questions.registry import answer
from models.masked_models import masked_tokenizer
from models.pair_models import build_pair_model, pair_tokenizer
from support.mined import mined_text
from web.served import client

ASKED = ("key_patterns", "key_removals", "layer_activity")


class Coefficients(NamedTuple):
    coefficients: Tensor


class SlowEncoder:
    """The encoder, the paths of its down-projections, the ids around a sentence, and the mask, if there is one.

    It stands in the place of a SlowMasked, of which no more is asked where there is no head: hence two ignored types.
    """

    def __init__(self, encoder: Any, down: str, before: list[int], after: list[int], mask: int | None) -> None:
        named = dict(encoder.named_modules())
        self.encoder, self.before, self.after, self.mask = encoder, before, after, mask
        self.downs = [module for path, module in named.items() if path.endswith(down)]
        self.layers = len(self.downs)

    def masked(self, tokens: list[int], position: int) -> list[int]:
        assert self.mask is not None
        return [*tokens[:position], self.mask, *tokens[position + 1 :]]

    @torch.no_grad()
    def read(self, tokens: list[int]) -> list[Tensor]:
        """The coefficients `[position, memory]` of every layer at a sentence's own tokens."""
        seen: list[Tensor] = []
        hooks = [one.register_forward_pre_hook(lambda _, given: seen.append(given[0].clone())) for one in self.downs]
        self.encoder(input_ids=torch.tensor([[*self.before, *tokens, *self.after]]))
        for hook in hooks:
            hook.remove()
        first = len(self.before)
        return [each.reshape(-1, each.shape[-1])[first : first + len(tokens)] for each in seen]

    def at(self, tokens: list[int], position: int) -> tuple[list[Coefficients], None, list[Any]]:
        return [Coefficients(each[position]) for each in self.read(tokens)], None, []


def build_pair(kind: str) -> Any:
    """An encoder-decoder whose halves have different numbers of layers."""
    deeper = {"num_layers": 2, "encoder_layers": 2, "num_decoder_layers": 3, "decoder_layers": 3}
    return build_pair_model(kind, **deeper)


def of_pair(kind: str, down: str) -> tuple[Any, Any, SlowEncoder]:
    network, tokenizer = build_pair(kind), pair_tokenizer(kind)
    before = [] if "t5" in kind else [1]
    return network, tokenizer, SlowEncoder(network.get_encoder(), down, before, [2], None)


def of_masked(kind: str, down: str) -> tuple[Any, Any, SlowEncoder]:
    base = build_masked(kind).base_model
    return base, masked_tokenizer(48), SlowEncoder(base, down, [1], [2], 3)


ENCODERS: dict[str, tuple[Callable[[str, str], tuple[Any, Any, SlowEncoder]], str]] = {
    "t5": (of_pair, "DenseReluDense.wo"),
    "gated t5": (of_pair, "DenseReluDense.wo"),
    "bart": (of_pair, "fc2"),
    "m2m_100": (of_pair, "fc2"),
    "bert": (of_masked, "output.dense"),
    "modernbert": (of_masked, "mlp.Wo"),
}


def load(kind: str) -> tuple[Any, SlowEncoder]:
    make, down = ENCODERS[kind]
    network, tokenizer, slow = make(kind, down)
    if kind == "bert":  # not the output of attention, which has the same name
        slow.downs = [layer.output.dense for layer in network.encoder.layer]
        slow.layers = len(slow.downs)
    side = "encoder" if make is of_pair else None
    return ms.load_model(network, tokenizer=tokenizer, side=side, progress=False), slow


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """T5's, mined and asked."""
    model, _ = load("t5")
    sentences = [[token for token in words if token < 40] or [9] for words in draw(60, seed=1)]
    atlas = mined_text(model, tmp_path_factory.mktemp("encoder"), written(sentences), triggers=6, removals=5)
    write_all(atlas)
    return atlas.path


@pytest.mark.fast(2)
@pytest.mark.parametrize("kind", list(ENCODERS))
def test_keys_and_removals_are_the_encoders_own(kind: str, tmp_path: Path) -> None:
    model, slow = load(kind)
    rows = model.sizes.vocabulary
    mined, other = ([[5 + token % (rows - 5) for token in words] for words in draw(*of)] for of in ((40, 1), (14, 2)))
    mined = [list(one) for one in dict.fromkeys(map(tuple, mined))]
    other = [list(one) for one in dict.fromkeys(map(tuple, other)) if list(one) not in mined]
    options = {"triggers": 4, "removals": "all", "prefixes": 30, "seed": 3, "batch_tokens": 60}
    out = mined_text(model, tmp_path, written(mined), other=written(other), **options).path
    sentences = [Sentence("", tokens, number, 1, False) for number, tokens in enumerate(mined)]
    reference = WholeReference(slow, sentences)  # type: ignore[arg-type]
    for layer in range(slow.layers):
        assert_triggers(out, reference, layer, keep=4, signs=model.signs)
        assert_activity(out, reference, layer)
        assert "own_coefficient" not in pl.read_parquet(out / f"triggers/layer-{layer:03d}.parquet").columns
    left_out = check_masked_removals(out, slow, sentences, seed=3)  # type: ignore[arg-type]
    assert left_out == open_atlas(out).manifest.questions.removals_excluded
    check_activity(out, slow, {len(mined) + number: tokens for number, tokens in enumerate(other)})
    assert verify(out) == []
    assert not (out / "values").exists()


def check_activity(out: Path, slow: SlowEncoder, text: dict[int, list[int]]) -> None:
    """How many memories are active at the held-out positions; what needs a head is null."""
    prefixes = pl.read_parquet(out / "prefixes.parquet").rows(named=True)
    predictions = pl.read_parquet(out / "predictions.parquet").rows(named=True)
    assert len(prefixes) > 5
    assert len(predictions) == len(prefixes) * slow.layers
    for row in predictions:
        prefix = prefixes[row["prefix"]]
        tokens, j = text[prefix["sentence"]], prefix["position"]
        read = tokens if slow.mask is None else slow.masked(tokens, j)
        m = slow.read(read)[row["layer"]][j].double().numpy()
        weight = slow.downs[row["layer"]].weight.detach().double().numpy()
        c = np.abs(m) * np.linalg.norm(weight, axis=0)
        assert row["active"] == (m > 0).sum()
        assert row["effective"] == pytest.approx(c.sum() ** 2 / (c**2).sum(), rel=1e-4)
        assert row["top_share"] == pytest.approx(c.max() / c.sum(), rel=1e-4)
        assert row["major"] == 1 + (np.cumsum(np.sort(c)[::-1]) < 0.9 * c.sum()).sum()
        told = {"prefix", "layer", "active", "effective", "top_share", "major"}
        assert {name for name, value in row.items() if value is not None} == told
        assert prefix["final_top"] is None


def test_the_side_stands_in_plan_and_name(encoder: Path) -> None:
    manifest = open_atlas(encoder).manifest
    assert (manifest.plan["side"], manifest.plan["head"], manifest.model.head) == ("encoder", "none", "none")
    assert manifest.model.spec == "memory:T5ForConditionalGeneration (encoder)"
    assert not any(path.startswith(("values", "neighbours", "roles", "attention")) for path in manifest.files)


def test_questions_about_keys_are_answered_and_the_others_are_refused(encoder: Path) -> None:
    assert {path.stem for path in (encoder / "analyses").glob("*.json")} - {"manifest"} == {*ASKED}
    with pytest.raises(ModelUnsupported, match="no head for tokens"):
        answer(encoder, "value_agreement")
    active = answer(encoder, "layer_activity").filter(pl.col("layer").is_null(), pl.col("name") == "active")
    assert 0 < active["value"][0] < 1


def test_values_are_refused_in_one_line(encoder: Path, tmp_path: Path) -> None:
    atlas, (model, _) = open_atlas(encoder), load("t5")
    for ask in (
        lambda: atlas.table("values", layer=0),
        lambda: atlas["L0.M0"].value(),
        lambda: extend(encoder, model, tables=["roles"]),
        lambda: fit_lenses(encoder, model),
        lambda: ms.trace(model, "w9 w8"),
        lambda: ms.attribute(model, "w9 w8"),
        lambda: ms.diff(model, "w9 w8", other_prompt="w9 w7"),
        lambda: model.head(),
        lambda: model.logits(torch.tensor([[5, 2]])),
        lambda: model.scores(torch.zeros(1, model.sizes.hidden), projection="lens"),
    ):
        with pytest.raises(ModelUnsupported, match=KEYS_ONLY):
            ask()
    with pytest.raises(OptionError, match="own is of models with values"):
        mined_text(model, tmp_path, "w9 w8\n", own=3)


def test_a_memory_is_shown_without_a_value(encoder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert MemoryDocument(open_atlas(encoder), MemoryId.parse("L0.M3")).to_dict()["triggers"]
    assert "value" not in MemoryDocument(open_atlas(encoder), MemoryId.parse("L0.M3")).to_dict()
    assert main(["show", str(encoder), "L0.M3"]) == 0
    assert f"No value here: {KEYS_ONLY}" in capsys.readouterr().out
    assert "value_norm" not in open_atlas(encoder)[0].table().columns


def test_pages_and_report_do_without_values(encoder: Path, tmp_path: Path) -> None:
    web = client(encoder)
    for path in ("/", "/layers", "/layers/0", "/L0.M3", "/questions", "/tokens", "/search?q=w9", "/tokens/9"):
        answered = web.get(path)
        assert answered.status_code == 200, f"{path}: {answered.text}"
        assert "no clear token" not in answered.text
    assert KEYS_ONLY[1:] in web.get("/").text
    assert "masked" not in web.get("/questions/layer_activity").text
    assert "Most similar value" not in web.get("/L0.M3").text
    assert main(["report", str(encoder), "--out", str(tmp_path / "report")]) == 0


def test_coefficients_of_an_encoder_are_read_in_python() -> None:
    model, slow = load("t5")
    found = model.coefficients("w9 w8 w7", layers=[1], as_arrays=True)[1]
    assert np.allclose(found[0], slow.read([9, 8, 7])[1].numpy(), atol=1e-5)
    last = model.coefficients(["w9 w8 w7"], layers=[1], at="last", as_arrays=True)[1]
    assert np.allclose(np.asarray(last).reshape(-1), slow.read([9, 8, 7])[1][-1].numpy(), atol=1e-5)


def test_a_stored_encoder_is_read(tmp_path: Path) -> None:
    """Of T5 the folder that T5EncoderModel writes, of BERT one without the head's weights."""
    network = build_pair("t5")
    alone = T5EncoderModel(copy.deepcopy(network.config))
    alone.encoder.load_state_dict(network.get_encoder().state_dict())
    whole, part, bert = (tmp_path / name for name in ("whole", "part", "bert"))
    for folder, one in ((whole, network), (part, alone)):
        one.save_pretrained(folder)
        pair_tokenizer("t5").save_pretrained(folder)
    both = [
        ms.load_model(str(folder), side=side, progress=False) for folder, side in ((whole, "encoder"), (part, None))
    ]
    assert [model.opening.side for model in both] == ["encoder", "encoder"]
    ours = [model.coefficients("w9 w8", as_arrays=True)[1] for model in both]
    assert np.array_equal(*map(np.asarray, ours))
    base = build_masked("bert").base_model
    base.save_pretrained(bert)
    masked_tokenizer(48).save_pretrained(bert)
    model = ms.load_model(str(bert), progress=False)
    assert (model.keys_only, model.spec) == (True, "bert (encoder)")
    read = AutoModel.from_pretrained(bert)
    slow = SlowEncoder(read, "", [1], [2], 3)
    slow.downs = [layer.output.dense for layer in read.encoder.layer]
    found = model.coefficients("w9 w8", as_arrays=True)[0]
    assert np.allclose(np.asarray(found)[0], slow.read([9, 8])[0].numpy(), atol=1e-5)
    whole_state = build_masked("bert").state_dict()
    (bert / "model.safetensors").unlink()
    some = {name: tensor for name, tensor in whole_state.items() if "transform.dense" not in name}
    build_masked("bert").save_pretrained(bert, state_dict=some)
    with pytest.raises(ModelDamaged, match="lacks 2 of its weights"):  # a damaged head is none that was never there
        ms.load_model(str(bert), progress=False)
    (bert / "model.safetensors").unlink()
    state = {name: tensor for name, tensor in base.state_dict().items() if "layer.1.output.dense" not in name}
    base.save_pretrained(bert, state_dict=state)
    with pytest.raises(ModelDamaged, match="lacks"):
        ms.load_model(str(bert), progress=False)


def test_a_side_that_a_model_lacks_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OptionError, match="is a decoder alone, which side encoder does not fit"):
        ms.load_model("builtin:pydocs", side="encoder", progress=False)
    with pytest.raises(OptionError, match="is an encoder alone, which side decoder does not fit"):
        ms.load_model(build_masked("bert"), tokenizer=masked_tokenizer(48), side="decoder", progress=False)
    assert main(["inspect", "builtin:pydocs", "--side", "neither"]) == 2
    assert "--side 'neither' is not known; choose one of decoder, encoder" in capsys.readouterr().err
    build_pair("t5").save_pretrained(tmp_path)
    pair_tokenizer("t5").save_pretrained(tmp_path)
    assert main(["inspect", str(tmp_path), "--side", "encoder", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["kind"], facts["head"], facts["layers"]) == ("encoder", "none", 2)
