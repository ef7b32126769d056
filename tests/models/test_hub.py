"""Where names are looked for, with and without a network, and what libraries say as one line of ours."""

import errno
import re
import socket
from contextlib import nullcontext
from pathlib import Path

import pytest
import transformers

from mnemoscope.errors import ModelDamaged, ModelError, ModelNotFound, ModelUnsupported, StoreFailed
from mnemoscope.models.opening import hub


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the hub's host takes a connection, each time that it is asked for one; no proxy."""
    answers: list[bool] = []

    def connect(address: tuple[str, int], timeout: float) -> nullcontext[None]:
        if not answers.pop():
            raise ConnectionRefusedError
        return nullcontext()

    monkeypatch.setattr(hub, "getproxies", dict)
    monkeypatch.setattr(hub.socket, "create_connection", connect)
    return answers


@pytest.mark.parametrize("there", [True, False])
def test_a_name_is_looked_for_on_the_hub_where_it_can_be_reached(there: bool, network: list[bool]) -> None:
    network.append(there)
    asked = hub.where("some/model", "main", True)
    assert asked == {"revision": "main", "trust_remote_code": True, "local_files_only": not there}


def test_nobody_asks_for_the_hub_where_it_is_not_needed(
    network: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hub.where(str(tmp_path), None, False)["local_files_only"] is False
    monkeypatch.setattr(hub, "getproxies", lambda: {"https": "proxy"})
    assert hub.where("some/model", None, False)["local_files_only"] is False
    assert network == []


def test_a_host_that_answers_a_connection_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "getproxies", dict)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(hub.hub, "ENDPOINT", address)
        assert hub.where("some/model", None, False)["local_files_only"] is False
    assert hub.where("some/model", None, False)["local_files_only"] is True


def told(error: Exception, source: str = "some/model", **more: object) -> ModelError:
    """What becomes of an error of a library."""
    with pytest.raises(ModelError) as found, hub.one_line_errors(source, **more):  # type: ignore[arg-type]
        raise error
    assert "\n" not in str(found.value)
    return found.value


@pytest.mark.parametrize(
    ("error", "kind", "noun"),
    [
        (ValueError("Weights only load failed ..."), ModelUnsupported, "pickle"),
        (RuntimeError("Cannot use TorchScript archives"), ModelUnsupported, "compiled program .*state_dict"),
        (ValueError("set trust_remote_code=True"), ModelUnsupported, "pass trust_remote_code=True"),
        (ValueError("`tiktoken` is required"), ModelUnsupported, "pip install sentencepiece protobuf"),
        (ImportError("requires the SentencePiece library\n"), ModelUnsupported, "pip install sentencepiece$"),
        (ImportError("pip install awq\nor"), ModelUnsupported, "ImportError: pip install awq$"),
        (ValueError("anything\nelse"), ModelUnsupported, "ValueError: anything$"),
        (KeyError("x"), ModelDamaged, "KeyError: 'x'; take a complete copy"),
    ],
    ids=repr,
)
def test_an_error_of_a_library_is_one_line(error: Exception, kind: type, noun: str) -> None:
    found = told(error)
    assert type(found) is kind
    assert re.search(rf"^model 'some/model'.*{noun}", str(found))


def test_what_is_not_there_is_told_apart_from_what_cannot_be_read(tmp_path: Path) -> None:
    assert str(told(OSError("not found"))).startswith("no model 'some/model' on this machine or the hub (not found);")
    assert type(told(OSError("not found"))) is ModelNotFound
    folder = told(OSError("torn"), str(tmp_path))
    assert (type(folder), str(folder)) == (
        ModelDamaged,
        f"model {str(tmp_path)!r} cannot be read: torn; take a complete copy",
    )
    (tmp_path / "model.safetensors").write_bytes(b"half")
    for error, source in ((OSError("torn"), str(tmp_path)), (ValueError("torn"), "some/model")):
        found = told(error, source, folder=tmp_path)
        assert str(found) == f"model {source!r}: model.safetensors is cut off or damaged; take a complete copy"
    own = ModelNotFound("as it is")
    assert told(own) is own


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_cache_that_cannot_be_written_is_named(wrapped: bool, tmp_path: Path) -> None:
    """Nothing is wrong with the model, so nobody is sent for another copy or to the network."""
    error: OSError = NotADirectoryError(errno.ENOTDIR, "Not a directory", "/file/below/modules")
    if wrapped:
        outer = OSError("PermissionError while downloading")
        outer.__cause__ = error
        error = outer
    for source in (str(tmp_path), "some/model"):
        refused = pytest.raises(StoreFailed, match=r"^cannot use /file/below/modules: Not a.* set HF_HOME")
        with refused, hub.one_line_errors(source):
            raise error
    own = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "model.safetensors"))
    assert "take a complete copy" in str(told(own, str(tmp_path)))
    missing = FileNotFoundError(errno.ENOENT, "No such file", "/cache/token")
    assert "check the name and the network" in str(told(missing))


@pytest.mark.parametrize("nowhere", ["file", "/proc/self/none"])  # where no folder can be made, for two reasons
def test_own_code_that_has_nowhere_to_go_names_the_folder(
    nowhere: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    place = tmp_path / nowhere
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(place / "modules"))
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}')
    (model / "own.py").write_text("from transformers import PretrainedConfig\nclass Config(PretrainedConfig): pass\n")
    said = rf"cannot use {place}.*: (Not a|No such file or) directory; .* set HF_HOME"
    refused = pytest.raises(StoreFailed, match=said)
    with refused, hub.one_line_errors(str(model)):
        transformers.AutoConfig.from_pretrained(model, trust_remote_code=True)
