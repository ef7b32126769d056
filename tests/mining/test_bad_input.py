"""Whatever is wrong is one clear line; nothing is lost, nothing half-written, and a later run goes on."""

import gzip
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from mining.agreement import assert_agrees
from mining.conftest import byte_tokenizer, tables_of, tiny_model
from mining.reference import Reference, documents_of, sentences_of
from mnemoscope.atlas import open_atlas, verify
from mnemoscope.errors import (
    AtlasBusy,
    AtlasExists,
    CorpusEmpty,
    CorpusNotFound,
    CorpusUnreadable,
    MiningError,
    MnemoscopeError,
    ModelDamaged,
    NotFinite,
    OptionError,
    StoreFailed,
)
from mnemoscope.mining import mine
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.questions import QUESTIONS
from mnemoscope.questions.answers import with_patterns
from models.conftest import ROWS, build

OPTIONS: dict[str, Any] = {"split": "line", "triggers": 5, "batch_tokens": 150}
END = "<|endoftext|>"


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return tiny_model("gpt2")


@pytest.fixture
def whole(model: LanguageModel, text: Path, tmp_path: Path) -> dict[str, bytes]:
    return tables_of(mine(model, text, out=tmp_path / "whole", **OPTIONS))


def one_line(error: BaseException) -> bool:
    return "\n" not in str(error) and len(str(error)) < 500


class Stop(Exception):
    """The moment at which a run breaks off."""


def stopping_at(stage: str) -> Callable[..., None]:
    def progress(name: str, *_: Any) -> None:
        if name == stage:
            raise Stop

    return progress


# --- options -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value", "line"),
    [
        ("triggers", 0, "triggers must be at least 1, not 0"),
        ("triggers", 40_000, "at most 30000"),
        ("layers", "99", "99 is not within the model's layers 0-1"),
        ("layers", [5], "5 is not within the model's layers 0-1"),
        ("layers", "1-0", "'1-0'"),
        ("layers", "x", "'x'"),
        ("layers", [], "layers"),
        ("part", "0/3", "0/3"),
        ("part", "4/3", "4/3"),
        ("part", (0, 3), "0/3"),
        ("part", "1:3", "1:3"),
        ("dtype", "int8", "dtype must be one of float32, bfloat16, float16, not 'int8'"),
        ("per_sentence", 2, "per_sentence must be 1 or all, not '2'"),
        ("checkpoint_every", -1.0, "checkpoint_every must not be negative"),
        ("max_sentences", 0, "max_sentences must be at least 1, not 0"),
        ("max_tokens", 0, "max_tokens must be at least 1, not 0"),
        ("batch_tokens", 0, "batch_tokens must be at least 1, not 0"),
        ("prefixes", -1, "prefixes must be at least 0, not -1"),
        ("split", "words", "words"),
        ("seed", -1, "seed must be at least 0, not -1"),
    ],
)
def test_an_impossible_option(
    option: str, value: Any, line: str, model: LanguageModel, text: Path, tmp_path: Path
) -> None:
    with pytest.raises(OptionError) as refused:
        mine(model, text, out=tmp_path / "atlas", **{**OPTIONS, option: value})
    assert line in str(refused.value)
    assert one_line(refused.value)
    assert not (tmp_path / "atlas").exists()


# --- folders -----------------------------------------------------------------------------------------------------


def test_a_finished_atlas_is_not_mined_over(
    model: LanguageModel, text: Path, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    with pytest.raises(AtlasExists, match=r"is finished already; choose another folder, or force=True"):
        mine(model, text, out=tmp_path / "whole", **{**OPTIONS, "triggers": 3})
    assert tables_of(tmp_path / "whole") == whole
    assert verify(tmp_path / "whole") == []
    (tmp_path / "whole/manifest.json").unlink()  # so nobody knows whether it lacks patterns
    with pytest.raises(AtlasExists, match=r"is finished already; choose another folder, or force=True"):
        mine(model, text, out=tmp_path / "whole", **OPTIONS)
    assert tables_of(tmp_path / "whole") == whole


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_folder_of_something_else_is_left_alone(what: str, model: LanguageModel, text: Path, tmp_path: Path) -> None:
    place = tmp_path / "mine"
    if what == "folder":
        (place / "work").mkdir(parents=True)
        (place / "work/notes.txt").write_text("x")
    else:
        place.write_text("x")
    for force in (False, True):
        with pytest.raises(AtlasExists, match="holds something that is not an atlas"):
            mine(model, text, out=place, force=force, **OPTIONS)
    assert [p.name for p in place.rglob("*")] == (["work", "notes.txt"] if what == "folder" else [])


@pytest.mark.full
def test_an_atlas_finished_while_the_model_was_loading_is_not_mined_over(text: Path, tmp_path: Path) -> None:
    def other_run(stage: str, *_: Any) -> None:
        if stage == "loading":
            mine("handmade:planted", text, out=tmp_path / "atlas", split="line", triggers=3)

    with pytest.raises(AtlasExists, match="is finished already"):
        mine("handmade:planted", text, out=tmp_path / "atlas", split="line", progress=other_run)
    assert verify(tmp_path / "atlas") == []
    assert open_atlas(tmp_path / "atlas").manifest["plan"]["triggers"] == 3
    assert not (tmp_path / "atlas/unfinished.json").exists()


MINES = """import sys, time
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
from mining.conftest import tiny_model
from mining.test_bad_input import OPTIONS
from mnemoscope import mine
def wait(stage, *_):
    if stage == "mining":
        print("mining", flush=True)
        time.sleep(1000)
mine(tiny_model("gpt2"), sys.argv[2], out=sys.argv[3], progress=wait, **OPTIONS)
"""


@pytest.mark.full
def test_two_processes_do_not_write_one_atlas(
    model: LanguageModel, text: Path, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    tests = str(Path(__file__).parent.parent)
    command = [sys.executable, "-c", MINES, tests, str(text), str(tmp_path / "atlas")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"mining\n"
            with pytest.raises(AtlasBusy, match=f"pid {other.pid}"):
                mine(model, text, out=tmp_path / "atlas", **OPTIONS)
        finally:
            other.kill()
    mine(model, text, out=tmp_path / "atlas", **OPTIONS)
    assert tables_of(tmp_path / "atlas") == whole


# --- the disk ----------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)  # lazily: maps of the working copy may live on


@pytest.mark.full
def test_a_full_disk_at_every_stage(
    model: LanguageModel, text: Path, tmp_path: Path, whole: dict[str, bytes], small_disk: Path
) -> None:
    filler, out = small_disk / "filler", small_disk / "atlas"
    failed_at: set[str] = set()
    lines: list[str] = []
    for room in (0, 4, 8, 16, 24, 40, 64, 96, *range(128, 401, 4)):
        stages = ["start"]
        # The file system's own pages count as well, so the room left is a little less.
        filler.write_bytes(bytes((1 << 20) - (room << 10) - 4096))
        try:
            mine(
                model, text, out=out, checkpoint_every=0, progress=lambda s, *_, said=stages: said.append(s), **OPTIONS
            )
        except StoreFailed as refused:
            failed_at.add(stages[-1])
            lines.append(str(refused))
            assert not list(small_disk.rglob("*.mnemoscope-tmp"))
            for table in out.rglob("*.parquet"):
                pl.read_parquet(table)
        else:
            break
        filler.unlink(missing_ok=True)
        if (out / "manifest.json").exists():  # sealed; only the patterns are still to be made
            with_patterns(open_atlas(out), QUESTIONS)
            break
    else:
        raise AssertionError("never enough room")
    assert len(failed_at) >= 4, failed_at
    assert failed_at & {"removals", "predictions", "patterns"}, failed_at
    assert all("No space left" in line and "\n" not in line for line in lines)
    assert tables_of(out) == whole
    assert verify(out) == []


@pytest.mark.fast(0, full=3)
@pytest.mark.parametrize("stage", ["start", "mining", "tables", "values", "removals", "predictions", "finished"])
def test_a_read_only_folder(
    stage: str, model: LanguageModel, text: Path, tmp_path: Path, whole: dict[str, bytes], small_disk: Path
) -> None:
    out = small_disk / "atlas"
    if stage == "finished":
        mine(model, text, out=out, **OPTIONS)
    elif stage != "start":
        with pytest.raises(Stop):
            mine(model, text, out=out, checkpoint_every=0, progress=stopping_at(stage), **OPTIONS)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StoreFailed, match="Read-only file system") as refused:
        mine(model, text, out=out, force=stage == "finished", **OPTIONS)
    assert one_line(refused.value)
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    mine(model, text, out=out, force=stage == "finished", **OPTIONS)
    assert tables_of(out) == whole


# --- texts -------------------------------------------------------------------------------------------------------


def bad_text(kind: str, folder: Path) -> tuple[Path, type[MnemoscopeError], str]:
    rows = [f'{{"text": "the cat {i}"}}' for i in range(50)]
    if kind == "empty":
        (folder / "bad.txt").write_text("")
    elif kind == "blank":
        (folder / "bad.txt").write_text("\n \n\t\n")
    elif kind == "not utf-8":
        (folder / "bad.txt").write_bytes(b"the cat\n" * 50 + b"\xff\xfe\xfa\n")
        return folder / "bad.txt", CorpusUnreadable, "UTF-8"
    elif kind == "no field":
        (folder / "bad.jsonl").write_text("\n".join([*rows, '{"body": "x"}']))
        return folder / "bad.jsonl", CorpusUnreadable, "line 51"
    elif kind == "truncated":
        (folder / "bad.txt.gz").write_bytes(gzip.compress(os.urandom(3000).hex().encode())[:-900])
        return folder / "bad.txt.gz", CorpusUnreadable, "bad.txt.gz"
    else:
        return folder / "absent.txt", CorpusNotFound, "absent.txt"
    return folder / "bad.txt", CorpusEmpty, "no usable sentence"


@pytest.mark.fast(0, full=3)
@pytest.mark.parametrize("kind", ["empty", "blank", "not utf-8", "no field", "truncated", "absent"])
def test_a_text_that_cannot_be_used_leaves_nothing_behind_and_takes_nothing_away(
    kind: str, model: LanguageModel, text: Path, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    bad, error, line = bad_text(kind, tmp_path)
    with pytest.raises(error) as refused:
        mine(model, bad, out=tmp_path / "atlas", **OPTIONS)
    assert line in str(refused.value)
    assert one_line(refused.value)
    assert not list(tmp_path.glob("atlas/*"))
    with pytest.raises(error):
        mine(model, bad, out=tmp_path / "whole", force=True, **OPTIONS)
    assert verify(tmp_path / "whole") == []
    assert tables_of(tmp_path / "whole") == whole
    assert not (tmp_path / "whole/work").exists()
    mine(model, text, out=tmp_path / "atlas", **OPTIONS)
    assert tables_of(tmp_path / "atlas") == whole


def test_a_token_beyond_the_heads_rows(text: Path, tmp_path: Path) -> None:
    narrow = load_model(build("gpt2", vocab_size=200), tokenizer=byte_tokenizer(bos_token=END))
    with pytest.raises(ModelDamaged, match="beyond the 200 rows of the model's head") as refused:
        mine(narrow, text, out=tmp_path / "atlas", **OPTIONS)
    assert one_line(refused.value)
    assert not list(tmp_path.glob("atlas/*"))


# --- the model ---------------------------------------------------------------------------------------------------


@pytest.mark.fast(0, full=3)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("layer", [0, 1])
def test_coefficients_that_are_not_finite_name_layer_and_sentence(
    value: float, layer: int, text: Path, tmp_path: Path
) -> None:
    lines = text.read_text().split("\n")
    lines.insert(40, "a zebra ran")  # the only z of the text
    text.write_text("\n".join(lines))
    hf, tokenizer = build("gpt2"), byte_tokenizer(bos_token=END, eos_token=END)
    model = load_model(hf, tokenizer=tokenizer)
    sentences = sentences_of(documents_of(text.read_text(), "line"), lambda line: [line], tokenizer, longest=63)
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
    with pytest.raises(NotFinite, match=rf"layer {layer} .* sentence {number}\b") as refused:
        mine(model, text, out=out, checkpoint_every=0, **OPTIONS)
    assert one_line(refused.value)
    for hook in hooks:
        hook.remove()
    mine(model, text, out=out, **OPTIONS)
    assert tables_of(out) == tables_of(mine(model, text, out=tmp_path / "fresh", **OPTIONS))


def test_finite_weights_that_overflow_in_half_precision(text: Path, tmp_path: Path) -> None:
    model = load_model(build("gpt2-relu"), tokenizer=byte_tokenizer(bos_token=END, eos_token=END), dtype="float16")
    keys = model.anatomy.layers[1].ffn.gate.module
    keys.weight[0, 3] = 60_000.0  # after the proof: finite, but not times 1.1
    model.usage = None  # as if that had always been there
    with pytest.raises(NotFinite, match=r"layer 1 has NaN or infinite coefficients on sentence .* dtype='float32'"):
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
            raise RuntimeError(
                "[enforce fail at alloc_cpu.cpp:119] err == 0. DefaultCPUAllocator: can't allocate memory"
            )


@pytest.mark.fast(1)
@pytest.mark.parametrize(("rows", "times"), [(4, 1), (1, 3), (2, 1000)])
def test_a_batch_that_does_not_fit_is_computed_in_halves_and_listed(
    rows: int, times: int, text: Path, tmp_path: Path
) -> None:
    hf, tokenizer = build("gpt2"), byte_tokenizer(bos_token=END, eos_token=END)
    model = load_model(hf, tokenizer=tokenizer)
    sentences = sentences_of(documents_of(text.read_text(), "line"), lambda line: [line], tokenizer, longest=63)
    reference = Reference(hf, sentences, beginning=0)
    memory = Memory(hf, rows=rows, times=times)
    model.usage = None  # memory is to run out in the run, not where the model is found changed
    out = mine(model, text, out=tmp_path / "atlas", **OPTIONS)
    listed = open_atlas(out).manifest["out_of_memory_batches"]
    assert listed == sorted(set(listed))
    assert 1 <= len(listed) <= times
    assert max(memory.seen) > rows
    memory.times = 0
    assert_agrees(out, reference, keep=5, layers=(0, 1), vocabulary=ROWS)


def test_halves_are_forgotten_when_they_fail_midway(text: Path, tmp_path: Path) -> None:
    """Memory that runs out in the second layer leaves nothing of the first one's measurements."""
    hf, tokenizer = build("gpt2"), byte_tokenizer(bos_token=END, eos_token=END)
    model = load_model(hf, tokenizer=tokenizer)
    sentences = sentences_of(documents_of(text.read_text(), "line"), lambda line: [line], tokenizer, longest=63)
    reference = Reference(hf, sentences, beginning=0)
    least = [2, 2, 4]  # of how many rows a batch must be to fail next

    def fail(_: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        if least and len(inputs[0]) >= least[-1]:
            least.pop()
            raise torch.OutOfMemoryError("CUDA out of memory")

    hf.transformer.h[1].mlp.act.register_forward_pre_hook(fail)
    out = mine(model, text, out=tmp_path / "atlas", **OPTIONS)
    assert not least
    assert open_atlas(out).manifest["out_of_memory_batches"]
    assert_agrees(out, reference, keep=5, layers=(0, 1), vocabulary=ROWS)


def test_one_sentence_that_does_not_fit_is_named(text: Path, tmp_path: Path) -> None:
    hf = build("gpt2")
    model = load_model(hf, tokenizer=byte_tokenizer(bos_token=END, eos_token=END))
    Memory(hf, rows=0, times=10**9)
    for size in (150, 1):  # also where the batch is one sentence from the start
        with pytest.raises(MiningError, match=r"memory ran out on sentence \d+, alone"):
            mine(model, text, out=tmp_path / f"atlas-{size}", **{**OPTIONS, "batch_tokens": size})


def test_another_failure_of_the_model_is_no_want_of_memory(text: Path, tmp_path: Path) -> None:
    hf = build("gpt2")
    model = load_model(hf, tokenizer=byte_tokenizer(bos_token=END, eos_token=END))

    def fail(*_: Any) -> None:
        raise RuntimeError("the machine is on fire")

    hf.transformer.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="on fire"):
        mine(model, text, out=tmp_path / "atlas", **OPTIONS)
