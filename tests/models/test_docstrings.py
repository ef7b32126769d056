"""`python -OO`, which has no docstrings, opens a model and traces, and lists what every verb takes."""

import subprocess
import sys

import pytest


def optimized(script: str) -> str:
    done = subprocess.run([sys.executable, "-OO", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_help_lists_options_without_docstrings() -> None:
    script = """
from mnemoscope.cli.app import app, run_verb
verbs = [command.name for command in app.registered_commands]
print(len(verbs), {run_verb([verb, "--help"]) for verb in verbs})
"""
    *said, last = optimized(script).splitlines()
    count, codes = last.split(maxsplit=1)
    assert codes == "{0}"
    assert said.count("Options:") == int(count) > 10


@pytest.mark.slow
def test_a_model_is_opened_and_traced() -> None:
    script = """
import mnemoscope as ms
from mnemoscope.models import WITH_DOCSTRINGS
import mnemoscope.training.recipe
print(WITH_DOCSTRINGS, len(ms.trace(ms.load_model("builtin:pydocs"), "the list").tokens) > 0)
"""
    assert optimized(script) == "False True\n"
