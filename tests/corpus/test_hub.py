"""Hub data sets, from a local folder as the hub would stream them; no network."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mnemoscope.corpus import open_source
from mnemoscope.errors import CorpusNotFound, CorpusUnreadable, OptionError

pytest.importorskip("datasets")
from huggingface_hub import HfApi
from huggingface_hub.errors import RepositoryNotFoundError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data set of two splits."""
    for split, count in (("train", 5), ("test", 2)):
        rows = [f'{{"text": "{split} row {i}. Yes."}}' for i in range(count)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(rows))
    return tmp_path


def test_rows_are_streamed_from_the_train_split(folder: Path) -> None:
    source = open_source(f"hub:{folder}")
    assert list(source.documents()) == [f"train row {i}. Yes." for i in range(5)]
    assert source.meter.done == 5 * len("train row 0. Yes.")
    assert source.size is None


def test_configuration_and_split_are_named(folder: Path) -> None:
    expected = ["test row 0. Yes.", "test row 1. Yes."]
    assert list(open_source(f"hub:{folder}:default:test").documents()) == expected
    assert list(open_source(f"hub:{folder}::test").documents()) == expected


@pytest.mark.parametrize("rest", [":default:nosuch", ":nosuch"])
def test_an_unknown_split_or_configuration(folder: Path, rest: str) -> None:
    with pytest.raises(CorpusNotFound, match=r"cannot be opened \(.*\)"):
        open_source(f"hub:{folder}{rest}")


def test_a_row_without_the_field(folder: Path) -> None:
    with pytest.raises(CorpusUnreadable, match="row 0 has no field 'body'"):
        list(open_source(f"hub:{folder}", text_field="body").documents())


@pytest.mark.parametrize(("sound", "error"), [(0, CorpusNotFound), (2, CorpusUnreadable)])
def test_a_row_that_cannot_be_read_is_named(tmp_path: Path, sound: int, error: type[Exception]) -> None:
    """Where none was read before it, the data set itself may not be there."""
    if sound:
        (tmp_path / "train-0.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    (tmp_path / "train-1.jsonl").write_text('{"text": "three"\n')
    reading = open_source(f"hub:{tmp_path}").documents()
    assert [next(reading) for _ in range(sound)] == ["one", "two"][:sound]
    with pytest.raises(error, match=rf"^hub:{tmp_path}: row {sound} .*JSON"):
        next(reading)


def test_a_name_that_the_hub_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RepositoryNotFoundError("404 Client Error", response=SimpleNamespace(headers={}, request=None))

    monkeypatch.setattr(HfApi, "dataset_info", refuse)
    with pytest.raises(CorpusNotFound, match="hub:no/such: no such data set"):
        open_source("hub:no/such")


@pytest.mark.parametrize(("length", "said"), [(200, "e" * 200), (201, "e" * 197 + "...")])
def test_what_the_hub_says_is_shortened(monkeypatch: pytest.MonkeyPatch, length: int, said: str) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("e" * length)

    monkeypatch.setattr(HfApi, "dataset_info", refuse)
    with pytest.raises(CorpusNotFound) as refused:
        open_source("hub:no/such")
    assert str(refused.value) == f"hub:no/such: the hub cannot be asked ({said}); check name and network"


def test_another_content_of_a_folder_is_another_data_set(folder: Path) -> None:
    first = open_source(f"hub:{folder}").identity
    assert open_source(f"hub:{folder}").identity == first
    (folder / "train.jsonl").write_text('{"text": "another row."}')
    assert open_source(f"hub:{folder}").identity != first


def test_the_commit_of_a_data_set_is_settled_when_it_is_opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    commits = iter(["c" * 40, "d" * 40])
    asked: list[str | None] = []
    load = datasets.load_dataset

    def local(name: str, config: str | None, **options: object) -> object:
        asked.append(options.pop("revision"))  # type: ignore[arg-type]
        return load(str(folder), config, **options)

    monkeypatch.setattr(HfApi, "dataset_info", lambda *_, **__: SimpleNamespace(sha=next(commits)))
    monkeypatch.setattr(datasets, "load_dataset", local)
    first, second = open_source("hub:some/data"), open_source("hub:some/data")
    assert first.identity != second.identity
    assert len(list(first.documents())) == 5
    assert asked == ["c" * 40, "d" * 40, "c" * 40], "what is read is not the commit that was settled"


def test_without_the_extra_it_is_asked_for_before_the_hub_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(OptionError, match=r"^hub:some/texts needs datasets, .* pip install 'mnemoscope\[hub\]'$"):
        open_source("hub:some/texts")
