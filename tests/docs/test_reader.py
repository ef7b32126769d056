"""requirements-reader.txt: dependencies of pyproject.toml with its bounds, and all that they need in turn."""

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def listed() -> tuple[list[Requirement], list[Requirement]]:
    """Those of pyproject.toml, and those that they need in turn."""
    direct, _, more = (ROOT / "requirements-reader.txt").read_text(encoding="utf-8").partition("\n\n")
    first, second = (
        [Requirement(line) for line in part.splitlines() if line and not line.startswith("#")]
        for part in (direct, more)
    )
    return first, second


def stated() -> dict[str, Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {one.name: one for one in map(Requirement, project["dependencies"])}


def test_a_reader_has_the_same_bounds_and_no_package_that_runs_models() -> None:
    direct, _ = listed()
    assert [one for one in direct if stated().get(one.name) != one] == []
    assert len(direct) > 10
    left_out = stated().keys() - {one.name for one in direct}
    models = {"accelerate", "gguf", "peft", "safetensors", "tokenizers", "torch", "transformers"}
    assert left_out == models | {"sentencex", "zstandard"}, "the last two read texts to be mined"


def test_what_its_packages_need_is_listed_and_nothing_else() -> None:
    """`pip install --no-deps` installs what the file lists alone."""
    direct, more = listed()
    waiting, needed = [one.name for one in direct], set[str]()
    while waiting:
        for text in importlib.metadata.requires(waiting.pop()) or []:
            one = Requirement(text)
            name = canonicalize_name(one.name)
            if name not in needed and (one.marker is None or one.marker.evaluate({"extra": ""})):
                needed.add(name)
                waiting.append(name)
    assert {one.name for one in more} == needed - {one.name for one in direct}


@pytest.mark.parametrize("words", [["trace", "builtin:pydocs", "a"], ["train", "--out", "new"], ["demo", "--json"]])
def test_what_needs_torch_says_so_in_one_line(words: list[str], tmp_path: Path) -> None:
    script = "import sys; sys.modules |= dict.fromkeys(['torch', 'tokenizers'])\nfrom mnemoscope.cli import main\n"
    command = [sys.executable, "-c", f"{script}sys.exit(main({words!r}))"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert said.returncode == 2
    assert said.stderr.splitlines()[-1].startswith("mnemoscope: to")  # torch or tokenizers
    assert said.stderr.endswith("such as torch; install the whole: `pip install -c constraints.txt -e .`\n")
    assert list(tmp_path.iterdir()) == []
