"""Brute force == mined, on every family, on every kind of beginning, and on the built-in model."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from mining.agreement import assert_activity, assert_agrees, assert_triggers, assert_values
from mining.conftest import END, ENDS, byte_tokenizer, odd_text, tiny_model
from mining.equal_atlases import assert_equal_atlases
from mining.reference import Reference, documents_of, sentences_of
from mnemoscope.atlas import open_atlas, verify
from mnemoscope.corpus import split_sentences
from mnemoscope.errors import ModelNotFound
from mnemoscope.mining import mine
from mnemoscope.mining.text import batch_loader
from mnemoscope.models import load_model
from mnemoscope.models.opening.huggingface import builtin_folder
from models.conftest import CASES, ROWS, build
from models.test_structure import Carousel, make
from models.uncommon_models import UNCOMMON, build_seeing, build_uncommon
from support.mined import mined_text


def reference_of(hf: Any, tokenizer: Any, text: str, *, beginning: int | None, context: int = 64) -> Reference:
    longest = context - (beginning is not None)
    found = sentences_of(documents_of(text, "line"), lambda line: [line], tokenizer, longest=longest)
    return Reference(hf, found, beginning=beginning)


def mined(
    hf: Any, text: Path, *, special: dict[str, str] | None = None, context: int = 64, **options: Any
) -> tuple[Path, Reference]:
    """An atlas of the text's lines, and what it must say; with `<|endoftext|>` as the beginning token unless told."""
    tokenizer = byte_tokenizer(**(ENDS if special is None else special))
    model = load_model(hf, tokenizer=tokenizer)
    out = mine(model, text, out=text.parent / "atlas", **{"split": "line", "triggers": 7, **options})
    beginning = model.beginning.token
    return out, reference_of(hf, tokenizer, text.read_text(), beginning=beginning, context=context)


@pytest.mark.full
def test_every_family(family: str, text: Path) -> None:
    out, reference = mined(build(family), text, context=CASES[family].context)
    assert_agrees(out, reference, keep=7, layers=(0, 1), vocabulary=ROWS)
    assert verify(out) == []
    open_atlas(out)["L1.M3"].triggers()


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", list(UNCOMMON))
def test_every_uncommon_structure(name: str, text: Path) -> None:
    out, reference = mined(build_uncommon(name), text, removals=2, prefixes=20)
    assert_agrees(out, reference, keep=7, layers=open_atlas(out).layers, vocabulary=ROWS)
    assert verify(out) == []


@pytest.mark.full
def test_the_text_half_of_a_model_that_reads_pictures_is_the_text_model(text: Path, tmp_path: Path) -> None:
    seeing, tokenizer = build_seeing("llava"), byte_tokenizer(**ENDS)
    alone = AutoModelForCausalLM.from_config(seeing.config.text_config).eval().requires_grad_(False)
    alone.model.load_state_dict(seeing.model.language_model.state_dict())
    alone.lm_head.load_state_dict(seeing.lm_head.state_dict())
    options = {"split": "line", "triggers": 7, "removals": 2, "prefixes": 20}
    models = (load_model(hf, tokenizer=tokenizer) for hf in (seeing, alone))
    assert_equal_atlases(*(mine(hf, text, out=tmp_path / str(n), **options) for n, hf in enumerate(models)))


def test_a_block_that_stands_in_two_places_is_two_layers_without_being_its_own_neighbour(
    text: Path, tmp_path: Path
) -> None:
    hf, tokenizer = make(Carousel), byte_tokenizer(**ENDS)
    options = {"split": "line", "triggers": 7, "removals": 2, "prefixes": 20, "neighbours": 3}
    out = mine(load_model(hf, tokenizer=tokenizer), text, out=tmp_path / "atlas", **options)
    values = hf.storeys[0].pour.weight.T.double().numpy()
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    cosines = values @ values.T
    np.fill_diagonal(cosines, -np.inf)
    for layer in (0, 1):
        table = pl.read_parquet(out / f"neighbours/layer-{layer:03d}.parquet")
        assert not (table["memory"] == table["other_memory"]).any()
        for memory in range(len(values)):  # every value stands in both layers
            wanted = np.sort(np.repeat(cosines[memory], 2))[::-1][:3]
            found = table.filter(pl.col("memory") == memory).sort("rank")["cosine"].to_numpy()
            np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert open_atlas(out).manifest["model"]["sizes"]["layers"] == 2


def test_the_text_has_everything_odd(text: Path) -> None:
    tokenizer = byte_tokenizer()
    found = sentences_of(documents_of(text.read_text(), "line"), lambda line: [line], tokenizer, longest=63)
    assert max(s.multiplicity for s in found) > 1
    assert any(s.held_out for s in found)
    assert sum(len(s.tokens) == 1 for s in found if not s.held_out) >= 2
    assert sum(len(s.tokens) == 63 for s in found) >= 3  # windows
    assert any(END in s.text and len(s.tokens) > 3 for s in found)  # special strings are plain text


@pytest.mark.full
@pytest.mark.parametrize(("name", "special"), [("gpt2", {}), ("opt", {"bos_token": END})], ids=["none", "bos"])
def test_all_prefixes_of_a_sentence_may_be_triggers(name: str, special: dict[str, str], text: Path) -> None:
    options = {"triggers": 9, "per_sentence": "all", "batch_tokens": 150}
    out, reference = mined(build(name), text, special=special, **options)
    assert_agrees(out, reference, keep=9, layers=(0, 1), vocabulary=ROWS, per_sentence="all")


def test_more_triggers_than_sentences(tmp_path: Path) -> None:
    (tmp_path / "few.txt").write_text("the cat\na dog ran\nthe\n")
    out, reference = mined(build("gpt2-relu"), tmp_path / "few.txt", triggers=50)
    assert_agrees(out, reference, keep=50, layers=(0, 1), vocabulary=ROWS)


def test_one_token_sentences_alone_without_a_beginning_token_have_no_prefixes(tmp_path: Path) -> None:
    model = load_model(build("gpt2"), tokenizer=byte_tokenizer())
    (tmp_path / "ones.txt").write_text("a\nb\nc\n")
    out = mine(model, tmp_path / "ones.txt", out=tmp_path / "atlas", split="line")
    assert pl.read_parquet(out / "triggers/layer-000.parquet").is_empty()
    activity = pl.read_parquet(out / "activity/layer-000.parquet")
    assert (set(activity["prefixes"]), set(activity["max"])) == ({0}, {0.0})
    assert pl.read_parquet(out / "values/layer-000.parquet")["target"].null_count() == 24
    assert verify(out) == []


def test_a_layer_of_one_memory_has_no_neighbours(text: Path) -> None:
    out, reference = mined(build("gpt2-relu", n_inner=1, n_layer=1), text)
    assert_agrees(out, reference, keep=7, layers=(0,), vocabulary=ROWS)


@pytest.mark.full
def test_as_many_neighbours_as_asked(text: Path, tmp_path: Path) -> None:
    model = tiny_model()
    options = {"split": "line", "triggers": 5, "prefixes": 10, "removals": 0}
    ten = mine(model, text, out=tmp_path / "ten", **options)
    for most in (0, 3):
        out = mine(model, text, out=tmp_path / str(most), neighbours=most, **options)
        for layer in range(model.sizes.layers):
            found, every = (pl.read_parquet(folder / f"neighbours/layer-{layer:03d}.parquet") for folder in (out, ten))
            assert found.equals(every.filter(pl.col("rank") < most))
            assert len(found) == most * model.sizes.memories[layer]
        assert verify(out) == []


@pytest.mark.full
def test_only_some_layers_in_small_batches(text: Path) -> None:
    out, reference = mined(build("llama", num_hidden_layers=4), text, layers="1-2", batch_tokens=1)
    assert_agrees(out, reference, keep=7, layers=(1, 2), vocabulary=ROWS)
    assert sorted(path.name for path in (out / "triggers").iterdir()) == ["layer-001.parquet", "layer-002.parquet"]
    assert open_atlas(out).manifest["layers"] == [1, 2]


def test_sentences_of_paragraphs(tmp_path: Path) -> None:
    hf, tokenizer = build("gpt2-relu"), byte_tokenizer(bos_token=END)
    lines = odd_text(40).split("\n")
    raw = "\n".join(line.capitalize() + ("." if i % 3 else ".\n") for i, line in enumerate(lines) if line.strip())
    (tmp_path / "text.txt").write_text(raw)
    out = mine(load_model(hf, tokenizer=tokenizer), tmp_path / "text.txt", out=tmp_path / "atlas", triggers=5)
    documents = documents_of(raw, "sentence")
    assert len(documents) > 10
    found = sentences_of(documents, lambda text: split_sentences(text, "sentence"), tokenizer, longest=63)
    assert len({s.document for s in found}) < len(found)
    assert_agrees(out, Reference(hf, found, beginning=0), keep=5, layers=(0, 1), vocabulary=ROWS)


@pytest.mark.full
def test_deviation_and_histogram_see_the_sampled_batches_only(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_loader, "SAMPLED_TOKENS", 300)
    monkeypatch.setattr(batch_loader, "SAMPLED_EVERY", 3)
    seen: list[tuple[list[int], bool]] = []
    whole = batch_loader.BatchLoader.__call__

    def note(self: batch_loader.BatchLoader, number: int) -> Any:
        batch = whole(self, number)
        seen.append((batch.sentences.tolist(), batch.sampled))
        return batch

    monkeypatch.setattr(batch_loader.BatchLoader, "__call__", note)
    out, reference = mined(build("gpt2"), text, batch_tokens=90)
    tokens = 0
    for number, (sentences, sampled) in enumerate(seen):
        assert sampled == (tokens < 300 or number % 3 == 0)
        tokens += sum(len(reference.sentences[n].tokens) for n in sentences)
    chosen = [n for sentences, sampled in seen for n in sentences if sampled]
    assert 0 < len(chosen) < len(reference.mined)
    for layer in (0, 1):
        assert_activity(out, reference, layer, sampled=chosen)


@pytest.mark.full
def test_a_nearly_constant_coefficient_has_an_exact_deviation(text: Path) -> None:
    hf = build("gpt2-relu")
    for block in hf.transformer.h:
        block.mlp.c_fc.weight *= 1e-3
        block.mlp.c_fc.bias[:] = 37.3
    out, reference = mined(hf, text)
    for layer in (0, 1):
        assert_activity(out, reference, layer)


def test_large_scores_have_an_exact_entropy(text: Path) -> None:
    hf = build("gpt2-relu")
    hf.transformer.h[1].mlp.c_proj.weight *= 30
    tokens = hf.transformer.wte.weight
    hf.transformer.h[0].mlp.c_proj.weight[:] = tokens[7] * 100 * (1 + 1e-3 * tokens[:24])
    out, reference = mined(hf, text)
    for layer in (0, 1):
        table = pl.read_parquet(out / f"values/layer-{layer:03d}.parquet")
        for entropy, scores in zip(table["entropy"], reference.scores(layer), strict=True):
            shifted = scores - scores.max()
            log_p = shifted - np.log(np.exp(shifted).sum())
            expected = -(np.exp(log_p) * log_p).sum()
            # The scores themselves are float32: their own rounding is what may differ.
            assert abs(entropy - expected) <= 1e-5 * max(1, np.abs(scores).max() / 10)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_runs_and_is_recorded(dtype: str, text: Path, tmp_path: Path) -> None:
    hf, tokenizer = build("gpt2"), byte_tokenizer(bos_token=END)
    model = load_model(hf, tokenizer=tokenizer, dtype=dtype)
    out = mine(model, text, out=tmp_path / "atlas", split="line", triggers=7)
    manifest = open_atlas(out).manifest
    assert manifest["dtype"] == manifest["plan"]["dtype"] == dtype
    exact = reference_of(hf, tokenizer, text.read_text(), beginning=0, context=64)
    mined = pl.read_parquet(out / "triggers/layer-001.parquet").filter(pl.col("sign") == 1)
    assert mined.height == 7 * 24
    overlap = 0
    for memory in range(24):
        places, whole = exact.places(1)
        best: dict[int, float] = {}
        for (sentence, _), value in zip(places, whole[:, memory], strict=True):
            best[sentence] = max(best.get(sentence, -1e9), value)
        top = sorted(best, key=lambda n: -best[n])[:7]
        overlap += len(set(top) & set(mined.filter(pl.col("memory") == memory)["sentence"]))
    assert overlap > 0.8 * 7 * 24  # the same memories on the same text, but for rounding
    assert overlap < 7 * 24 or dtype == "float16"  # and it is not float32 in disguise


@pytest.mark.full
def test_the_built_in_model(tmp_path: Path) -> None:
    try:
        model = load_model("builtin:pydocs")
    except ModelNotFound:
        pytest.skip("the built-in model's weights are not in this checkout yet")
    place = builtin_folder("pydocs")
    hf = AutoModelForCausalLM.from_pretrained(place, dtype="float32").eval()
    tokenizer = AutoTokenizer.from_pretrained(place)
    lines = [line for line in (Path(__file__).parent / "agreement.py").read_text().split("\n") if line.strip()][:30]
    long = " ".join(lines * 2)
    raw = "\n".join([*lines, "", "a", "the", *lines[:9], long, long]) + "\n"
    out = mined_text(model, tmp_path, raw, triggers=10)
    context = hf.config.max_position_embeddings
    reference = reference_of(hf, tokenizer, raw, beginning=model.beginning.token, context=context)
    assert any(len(s.tokens) == model.longest for s in reference.sentences)
    signs = (1, -1) if reference.negative() else (1,)
    for layer in range(reference.layers):
        assert_activity(out, reference, layer)
        assert_triggers(out, reference, layer, keep=10, signs=signs)
        assert_values(out, reference, layer, every=50)


def test_the_comparison_notices_a_smallest_number_that_is_a_little_off(text: Path) -> None:
    """The control of `assert_values`: probabilities are far below 1, so an absolute bound would let one pass."""
    out, reference = mined(build("gpt2"), text, layers="0")
    assert_values(out, reference, 0)
    path = out / "values/layer-000.parquet"
    table = pl.read_parquet(path)
    for column in ("max_probability", "value_norm", "entropy", "trigger_log_probability"):
        size = pl.col(column).abs()
        off = pl.when(size == size.min()).then(pl.col(column) * 1.0004).otherwise(pl.col(column))
        table.with_columns(off.cast(pl.Float32).alias(column)).write_parquet(path)
        with pytest.raises(AssertionError, match=f"{column} is"):
            assert_values(out, reference, 0)
