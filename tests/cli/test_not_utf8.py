"""Words of a command that are not UTF-8 are refused in one line before any work: every verb, every place of a path."""

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

import mnemoscope as ms
from mnemoscope.cli.app import GROUPS, app
from mnemoscope.cli.runner import run
from mnemoscope.errors import OptionError

VERBS = [verb for verbs in GROUPS.values() for verb in verbs]
BAD = os.fsdecode(b"caf\xe9")


def words_of(verb: Callable[..., Any]) -> list[list[str]]:
    """Commands of a verb, each with the bad name in one place more: every argument, and every option for a path."""
    needed, asked, places = [], [], []
    for name, one in inspect.signature(verb, eval_str=True).parameters.items():
        kind, *_ = getattr(one.annotation, "__metadata__", ()) or (None,)
        if isinstance(kind, typer.models.ArgumentInfo):
            needed.append(name)
        elif isinstance(kind, typer.models.OptionInfo):
            flag = next(iter(kind.param_decls or ()), f"--{name.replace('_', '-')}")
            places += [flag] if "Path" in str(one.annotation) else []
            asked += [flag] if one.default is inspect.Parameter.empty else []
    plain, rest = ["x"] * len(needed), [word for flag in asked for word in (flag, "x")]
    spoilt = [[*plain[:at], BAD, *plain[at + 1 :], *rest] for at in range(len(needed))]
    return [[verb.__name__, *words] for words in (*spoilt, *([*plain, *rest, flag, BAD] for flag in places))]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_a_name_that_is_not_utf8(verb: Callable[..., Any], tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for words in words_of(verb):
        assert run(app, words) == 2, words
        line = capsys.readouterr().err.splitlines()[-1]
        assert line == "mnemoscope: 'caf\\udce9' is not UTF-8 and cannot be used; rename it", words
    assert list(tmp_path.iterdir()) == []


def test_in_python(tmp_path: Path) -> None:
    (tmp_path / BAD).mkdir()
    for use in (ms.open_atlas, ms.verify):
        with pytest.raises(OptionError, match="is not UTF-8"):
            use(tmp_path / BAD)
    with pytest.raises(OptionError, match="is not UTF-8"):
        ms.mine("handmade:planted", "builtin:pydocs", out=tmp_path / BAD)
