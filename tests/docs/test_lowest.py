"""The lowest versions that pyproject.toml states: all that are needed, none above what the tests pass with."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def lowest() -> dict[str, str]:
    command = [sys.executable, str(ROOT / "runs" / "lowest.py")]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return dict(line.split("==") for line in printed.splitlines())


def stated() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [Requirement(one) for one in project["dependencies"]]


def passed() -> dict[str, str]:
    lines = re.findall(r"^([a-z0-9-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    return dict(lines)


def test_every_dependency_has_its_lowest_version_and_torch_the_tried_one(lowest: dict[str, str]) -> None:
    assert (list(lowest), lowest["torch"]) == ([one.name for one in stated()], passed()["torch"])
    for one in stated():
        assert one.specifier.contains(lowest[one.name])
        below = {f"=={each.version}" for each in one.specifier if each.operator == ">="}
        assert one.name == "torch" or below == {f"=={lowest[one.name]}"}


def test_what_the_tests_passed_with_is_allowed(lowest: dict[str, str]) -> None:
    for one in stated():
        assert one.specifier.contains(passed()[one.name]), one.name
        assert Version(lowest[one.name]) <= Version(passed()[one.name])


def test_what_fails_is_not_allowed() -> None:
    """With pyarrow 19.0.0 a memory without triggers is said to be a damaged file; the others were reported to fail."""
    failing = {"transformers": "5.16.0", "accelerate": "1.1.1", "polars": "1.35.2", "pyarrow": "19.0.0"}
    assert [one.name for one in stated() if one.name in failing and one.specifier.contains(failing[one.name])] == []
