"""Where the packaged models lie."""

import pytest

from mnemoscope.errors import ModelNotFound
from mnemoscope.models.opening import huggingface


def test_an_unknown_name_is_told_with_those_there_are():
    with pytest.raises(ModelNotFound, match="no built-in model 'x'; there is builtin:pydocs"):
        huggingface.builtin_folder("x")


def test_missing_weights_are_told(monkeypatch, tmp_path):
    monkeypatch.setattr(huggingface, "__file__", str(tmp_path / "opening" / "huggingface.py"))
    with pytest.raises(ModelNotFound, match="the weights of 'builtin:pydocs' are not in this installation"):
        huggingface.builtin_folder("pydocs")
    (tmp_path / "pydocs").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "pydocs" / name).touch()
    assert huggingface.builtin_folder("pydocs") == tmp_path / "pydocs"
