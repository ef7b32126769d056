"""Whatever is wrong is one clear line; nothing is lost, nothing half-written, and a later run goes on."""

import gzip
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from mining.agreement import assert_agrees
from mining.conftest import ENDS, byte_tokenizer, load_bytes, stop_at, tables_of
from mining.reference import Reference, Sentence
from mining.reference_passes import distinct
from mnemoscope import errors
from mnemoscope.atlas import open_atlas, verify
from mnemoscope.mining import mine
from mnemoscope.models import LanguageModel, load_model
from models.conftest import ROWS, build

OPTIONS: dict[str, Any] = {"split": "line", "triggers": 5, "batch_tokens": 150}


def one_line(error: BaseException) -> bool:
    return "\n" not in str(error) and len(str(error)) < 500


# --- folders -----------------------------------------------------------------------------------------------------


def test_a_finished_atlas_is_not_mined_over(model: LanguageModel, text: Path, tmp_path: Path) -> None:
    whole = tables_of(mine(model, text, out=tmp_path / "whole", **OPTIONS))
    with pytest.raises(errors.AtlasExists, match=r"is finished already"):
        mine(model, text, out=tmp_path / "whole", **{**OPTIONS, "triggers": 3})
    assert tables_of(tmp_path / "whole") == whole
    assert verify(tmp_path / "whole") == []
    (tmp_path / "whole/manifest.json").unlink()  # so nobody knows whether it lacks patterns
    with pytest.raises(errors.AtlasExists, match=r"is finished already"):
        mine(model, text, out=tmp_path / "whole", **OPTIONS)
    assert tables_of(tmp_path / "whole") == whole


@pytest.mark.full
def test_a_run_holds_its_folder_while_its_model_is_loading(text: Path, tmp_path: Path) -> None:
    refused = list[str]()

    def other_run(stage: str, *_: Any) -> None:
        if stage == "loading":
            with pytest.raises(errors.AtlasBusy, match="is being written by another process") as error:
                mine("handmade:planted", text, out=tmp_path / "atlas", split="line", triggers=3)
            refused.append(str(error.value))

    mine("handmade:planted", text, out=tmp_path / "atlas", split="line", progress=other_run)
    assert len(refused) == 1
    assert verify(tmp_path / "atlas") == []
    assert open_atlas(tmp_path / "atlas").manifest["plan"]["triggers"] != 3


# --- the disk ----------------------------------------------------------------------------------------------------


@pytest.mark.fast(0, full=3)
@pytest.mark.parametrize("stage", ["start", "mining", "tables", "values", "removals", "predictions", "finished"])
def test_a_read_only_folder(
    stage: str, model: LanguageModel, text: Path, tmp_path: Path, whole: dict[str, bytes], small_disk: Path
) -> None:
    out = small_disk / "atlas"
    if stage == "finished":
        mine(model, text, out=out, **OPTIONS)
    elif stage != "start":
        with pytest.raises(errors.Interrupted):
            mine(model, text, out=out, checkpoint_every=0, progress=stop_at(stage), **OPTIONS)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(errors.StoreFailed, match="Read-only file system") as refused:
        mine(model, text, out=out, force=stage == "finished", **OPTIONS)
    assert one_line(refused.value)
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    mine(model, text, out=out, force=stage == "finished", **OPTIONS)
    assert tables_of(out) == whole


# --- texts -------------------------------------------------------------------------------------------------------


ROWS_OF_TEXT = "".join(f'{{"text": "the cat {i}"}}\n' for i in range(50))
BAD: list[tuple[str, bytes | None, type[errors.MnemoscopeError], str]] = [
    ("empty.txt", b"", errors.CorpusEmpty, "no usable sentence"),
    ("not-utf-8.txt", b"the cat\n" * 50 + b"\xff\xfe\xfa\n", errors.CorpusUnreadable, "UTF-8"),
    ("absent.txt", None, errors.CorpusNotFound, "absent.txt"),
    ("blank.txt", b"\n \n\t\n", errors.CorpusEmpty, "no usable sentence"),
    ("no-field.jsonl", f'{ROWS_OF_TEXT}{{"body": "x"}}'.encode(), errors.CorpusUnreadable, "line 51"),
    ("cut.txt.gz", gzip.compress(os.urandom(3000).hex().encode())[:-900], errors.CorpusUnreadable, "cut.txt.gz"),
]


@pytest.mark.full
def test_a_text_that_cannot_be_used_leaves_nothing_behind_and_takes_nothing_away(
    model: LanguageModel, text: Path, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    mine(model, text, out=tmp_path / "whole", **OPTIONS)
    for name, content, error, line in BAD:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(error) as refused:
            mine(model, tmp_path / name, out=tmp_path / "atlas", **OPTIONS)
        assert line in str(refused.value)
        assert one_line(refused.value)
        assert not list(tmp_path.glob("atlas/*"))
        with pytest.raises(error):
            mine(model, tmp_path / name, out=tmp_path / "whole", force=True, **OPTIONS)
        assert verify(tmp_path / "whole") == []
        assert tables_of(tmp_path / "whole") == whole
        assert not (tmp_path / "whole/work").exists()
    assert tables_of(mine(model, text, out=tmp_path / "atlas", **OPTIONS)) == whole


# --- the model ---------------------------------------------------------------------------------------------------


@dataclass
class Loaded:
    """A model of transformers that a test may change, it as a model, and the sentences of the text."""

    hf: Any
    model: LanguageModel
    sentences: list[Sentence]


@pytest.fixture
def loaded(text: Path) -> Loaded:
    hf, tokenizer = build("gpt2"), byte_tokenizer(**ENDS)
    return Loaded(hf, load_model(hf, tokenizer=tokenizer), distinct(text.read_text(), tokenizer, 0))


@pytest.mark.fast(0, full=2)
@pytest.mark.parametrize(("value", "layer"), [(float("nan"), 0), (float("-inf"), 1), (float("inf"), 0)])
def test_coefficients_that_are_not_finite_name_layer_and_sentence(
    value: float, layer: int, text: Path, tmp_path: Path, loaded: Loaded
) -> None:
    lines = text.read_text().split("\n")
    lines.insert(40, "a zebra ran")  # the only z of the text
    text.write_text("\n".join(lines))
    hf, model, tokenizer = loaded.hf, loaded.model, byte_tokenizer()
    sentences = distinct(text.read_text(), tokenizer, 0)
    number = next(n for n, s in enumerate(sentences) if "zebra" in s.text)
    assert not sentences[number].held_out
    z = tokenizer("z")["input_ids"][0]
    ids: list[torch.Tensor] = []
    hooks = [
        hf.transformer.wte.register_forward_pre_hook(lambda _, inputs: ids.append(inputs[0])),
        hf.transformer.h[layer].mlp.act.register_forward_hook(
            lambda _, inputs, output: output.masked_fill((ids[-1] == z)[:, :, None], value)
        ),
    ]
    out = tmp_path / "atlas"
    with pytest.raises(errors.NotFinite, match=rf"layer {layer} .* sentence {number}\b") as refused:
        mine(model, text, out=out, checkpoint_every=0, **OPTIONS)
    assert one_line(refused.value)
    for hook in hooks:
        hook.remove()
    mine(model, text, out=out, **OPTIONS)
    assert tables_of(out) == tables_of(mine(model, text, out=tmp_path / "fresh", **OPTIONS))


def test_finite_weights_that_overflow_in_half_precision(text: Path, tmp_path: Path) -> None:
    model = load_bytes(build("gpt2-relu"), dtype="float16")
    keys = model.anatomy.layers[1].ffn.gate.module
    keys.weight[0, 3] = 60_000.0  # after the proof: finite, but not times 1.1
    model.usage = None  # as if that had always been there
    with pytest.raises(errors.NotFinite, match=r"layer 1 .* sentence .* dtype='float32'"):
        mine(model, text, out=tmp_path / "atlas", **OPTIONS)


class Memory:
    """Lets the backbone fail for want of memory, as often as told, on batches that are not small enough."""

    def __init__(self, hf: Any, *, rows: int, times: int) -> None:
        self.rows, self.times = rows, times
        self.seen: list[int] = []
        hf.transformer.register_forward_pre_hook(self, with_kwargs=True)

    def __call__(self, _: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        ids = inputs[0] if inputs else named["input_ids"]
        self.seen.append(len(ids))
        if len(ids) > self.rows and self.times:
            self.times -= 1
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: can't allocate memory")


@pytest.mark.fast(1)
@pytest.mark.parametrize(("rows", "times"), [(4, 1), (1, 3), (2, 1000)])
def test_a_batch_that_does_not_fit_is_computed_in_halves_and_listed(
    rows: int, times: int, text: Path, tmp_path: Path, loaded: Loaded
) -> None:
    reference = Reference(loaded.hf, loaded.sentences, beginning=0)
    memory = Memory(loaded.hf, rows=rows, times=times)
    loaded.model.usage = None  # memory is to run out in the run, not where the model is found changed
    out = mine(loaded.model, text, out=tmp_path / "atlas", **OPTIONS)
    listed = open_atlas(out).manifest["out_of_memory_batches"]
    assert listed == sorted(set(listed))
    assert 1 <= len(listed) <= times
    assert max(memory.seen) > rows
    memory.times = 0
    assert_agrees(out, reference, keep=5, layers=(0, 1), vocabulary=ROWS)


def test_halves_are_forgotten_when_they_fail_midway(text: Path, tmp_path: Path, loaded: Loaded) -> None:
    """Memory that runs out in the second layer leaves nothing of the first one's measurements."""
    reference = Reference(loaded.hf, loaded.sentences, beginning=0)
    least = [2, 2, 4]  # of how many rows a batch must be to fail next

    def fail(_: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        if least and len(inputs[0]) >= least[-1]:
            least.pop()
            raise torch.OutOfMemoryError("CUDA out of memory")

    loaded.hf.transformer.h[1].mlp.act.register_forward_pre_hook(fail)
    out = mine(loaded.model, text, out=tmp_path / "atlas", **OPTIONS)
    assert not least
    assert open_atlas(out).manifest["out_of_memory_batches"]
    assert_agrees(out, reference, keep=5, layers=(0, 1), vocabulary=ROWS)


def test_one_sentence_that_does_not_fit_is_named(text: Path, tmp_path: Path, loaded: Loaded) -> None:
    Memory(loaded.hf, rows=0, times=10**9)
    for size in (150, 1):  # also where the batch is one sentence from the start
        with pytest.raises(errors.MiningError, match=r"memory ran out on sentence \d+, alone"):
            mine(loaded.model, text, out=tmp_path / f"atlas-{size}", **{**OPTIONS, "batch_tokens": size})


def test_another_failure_of_the_model_is_no_want_of_memory(text: Path, tmp_path: Path, loaded: Loaded) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("the machine is on fire")

    loaded.hf.transformer.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="on fire"):
        mine(loaded.model, text, out=tmp_path / "atlas", **OPTIONS)
