"""The help: quick, with an example everywhere, and the same in docs/cli.md."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from mnemoscope.cli.app import app
from mnemoscope.cli.reference import page

VERBS = [info.name for info in app.registered_commands]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_an_example_json_and_debug(verb: str) -> None:
    section = page().split(f"\n## {verb}\n")[1].split("\n## ")[0]
    assert f"Example: mnemoscope {verb}" in section
    assert "--json" in section
    assert "--debug" in section


def test_help_loads_nothing_heavy() -> None:
    """So that it comes at once; seconds are not asserted, since they depend on what else the machine does."""
    script = (
        "import sys\nfrom mnemoscope.cli import main\n"
        f"codes = [main([*verb, '--help']) for verb in [[], *([v] for v in {VERBS})]]\n"
        "heavy = {'torch', 'transformers', 'peft', 'gguf', 'polars', 'pyarrow', 'numpy', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\nsys.exit(max(codes))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: mnemoscope")
    assert done.stdout.count("Usage: mnemoscope") == 1 + len(VERBS)


def test_all_verbs_are_commands_and_the_page_in_docs_is_current() -> None:
    assert get_command(app).name == "mnemoscope"
    look = "analyze report serve show search trace attribute diff compare audit verify"
    assert " ".join(VERBS) == f"demo inspect mine train {look} export push mcp merge extend lens worker status"
    docs = Path(__file__).parents[2] / "docs" / "cli.md"
    assert docs.read_text(encoding="utf-8") == page(), "run python -m mnemoscope.cli.reference > docs/cli.md"


def test_the_first_help_shows_three_groups_of_whole_lines() -> None:
    group = get_command(app)
    shown = group.get_help(typer.Context(group, info_name="mnemoscope", terminal_width=80))
    begins = [shown.index(f"\n{title}:\n") for title in ("Start", "Look", "At scale")]
    assert begins == sorted(begins)
    lines = {name: command.get_short_help_str(1000) for name, command in group.commands.items()}
    for name, line in lines.items():
        assert len(line) <= 55, line
        assert re.search(rf"\n  {name} +{re.escape(line)}\n", shown), name


@pytest.mark.full
def test_a_shell_completes_verbs_and_options(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mnemoscope"]
    for typed, expected in (("mnemoscope ana", "analyze"), ("mnemoscope analyze --pat", "--patterns")):
        asked = {"_MNEMOSCOPE_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
        done = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True, check=True)
        assert done.stdout.split() == [expected]
