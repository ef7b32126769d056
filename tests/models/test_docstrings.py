"""`python -OO`, which has no docstrings, opens a model, explains every verb and traces; -O takes nothing but asserts."""

import subprocess
import sys

import pytest


def optimized(script: str) -> str:
    done = subprocess.run([sys.executable, "-OO", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("verb", ["", "mine", "trace", "show", "analyze"])
def test_help_does_not_come_from_docstrings(verb: str) -> None:
    said = optimized(f"from mnemoscope.cli.app import run_verb; run_verb({[verb, '--help'] if verb else ['--help']})")
    body = said.split("\n\n", 1)[1]
    assert len(body.split("Arguments:")[0].split("Options:")[0].strip()) > 20


def test_a_model_is_opened_and_traced() -> None:
    script = """
import mnemoscope as ms
from mnemoscope.models import WITH_DOCSTRINGS
import mnemoscope.training.recipe
print(WITH_DOCSTRINGS, len(ms.trace(ms.load_model("builtin:pydocs"), "the list").tokens) > 0)
"""
    assert optimized(script) == "False True\n"
