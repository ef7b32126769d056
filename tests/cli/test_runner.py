"""The frame: exit codes, one plain line last on stderr, one JSON document on stdout."""

import json
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from cli.test_signals import at_the_import_of
from mnemoscope.cli.command import as_command
from mnemoscope.cli.runner import BUG, INTERRUPTED, USER, emit, run
from mnemoscope.errors import AtlasNotFound, Interrupted, MnemoscopeError
from mnemoscope.foundation.options.declared import DeclaredOptions, option

Capture = pytest.CaptureFixture[str]


class Counted(DeclaredOptions):
    count: int = option(1, "How many.")


def app_that(act: Any) -> typer.Typer:
    """An app whose only verb does `act`."""
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)

    def verb(options: Counted, *, json: bool) -> None:
        act(json)

    app.command()(as_command(verb))
    return app


BUGS = [
    (NameError("name 'x' is not defined"), "NameError: name 'x' is not defined"),
    (KeyError("k"), "KeyError: 'k'"),
    (OSError("odd"), "OSError: odd"),
]
LITTLE = "there is too little memory; free some, or raise the limit that `ulimit -v` shows"


def raising(error: BaseException) -> typer.Typer:
    def act(json: bool) -> None:
        raise error

    return app_that(act)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (AtlasNotFound("no atlas in x"), USER, "mnemoscope: no atlas in x"),
        (MnemoscopeError("two\nlines"), USER, "mnemoscope: two lines"),
        (Interrupted("saved; run it again"), INTERRUPTED, "mnemoscope: saved; run it again"),
        (KeyboardInterrupt(), INTERRUPTED, "mnemoscope: stopped by Ctrl-C"),
        (PermissionError(13, "Permission denied", "x.txt"), USER, "mnemoscope: cannot use x.txt: Permission denied"),
        (MemoryError(), USER, f"mnemoscope: {LITTLE}"),
        (RuntimeError("can't start new thread"), USER, f"mnemoscope: {LITTLE}"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), USER, f"mnemoscope: {LITTLE}"),
        *(
            (error, BUG, f"mnemoscope: a bug in mnemoscope: {said}; please report it with what --debug shows")
            for error, said in BUGS
        ),
    ],
)
def test_every_end_is_one_plain_line(error: BaseException, code: int, line: str, capsys: Capture) -> None:
    assert run(raising(error), []) in (code, 0)  # no arguments mean --help
    capsys.readouterr()
    assert run(raising(error), ["--count", "1"]) == code
    out, err = capsys.readouterr()
    assert (out, err) == ("", line + "\n")


def test_debug_shows_the_traceback_and_still_ends_plainly(capsys: Capture) -> None:
    assert run(raising(AtlasNotFound("no atlas in x")), ["--debug"]) == USER
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1] == "mnemoscope: no atlas in x"


@pytest.mark.parametrize("arguments", [["--count", "many"], ["--cuont", "1"], ["extra"], ["--count"]])
def test_usage_errors_are_one_line_too(arguments: list[str], capsys: Capture) -> None:
    assert run(app_that(lambda json: None), arguments) == USER
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert err.startswith("mnemoscope: ")


def test_json_alone_reaches_stdout(capsys: Capture) -> None:
    def act(json: bool) -> None:
        print("a library talks")
        emit({"share": 0.5, "nothing": float("nan"), "rows": [{"low": float("-inf")}]})

    assert run(app_that(act), ["--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"share": 0.5, "nothing": None, "rows": [{"low": None}]}
    assert err == "a library talks\n"
    print("stdout is back")
    assert capsys.readouterr().out == "stdout is back\n"


def test_an_error_is_a_json_document_unless_one_was_given_before(capsys: Capture) -> None:
    assert run(raising(AtlasNotFound("no atlas in x")), ["--json"]) == USER
    out, err = capsys.readouterr()
    assert json.loads(out) == {"error": "AtlasNotFound", "message": "no atlas in x", "exit_code": 2}
    assert err == "mnemoscope: no atlas in x\n"

    def act(json: bool) -> None:
        emit({"ok": False})
        raise AtlasNotFound("no atlas in x")

    assert run(app_that(act), ["--json"]) == USER
    assert json.loads(capsys.readouterr().out) == {"ok": False}


def test_two_documents_are_a_bug(capsys: Capture) -> None:
    def act(json: bool) -> None:
        emit(1)
        emit(2)

    assert run(app_that(act), ["--json"]) == BUG
    assert json.loads(capsys.readouterr().out) == 1


def verb_script(*lines: str) -> str:
    """A program with one verb, whose body are `lines`, run as the command line runs ours."""
    body = "".join(f"    {line}\n" for line in lines)
    return (
        "import sys, time, typer\n"
        "from mnemoscope.cli.runner import run\n"
        "app = typer.Typer()\n"
        "@app.command()\n"
        f"def verb(n: int = 0) -> None:\n{body}"
        "sys.exit(run(app, ['--n', '1']))\n"
    )


def test_a_character_that_the_terminal_lacks_is_no_error() -> None:
    script = verb_script("print('caf\\u00e9 \\u2603')")
    command = [sys.executable, "-X", "utf8=0", "-c", script]
    done = subprocess.run(
        command, capture_output=True, check=True, env={"PYTHONIOENCODING": "ascii", "PYTHONPATH": ":".join(sys.path)}
    )
    assert done.stdout == b"caf\\xe9 \\u2603\n"


def test_ctrl_c_in_a_real_process() -> None:
    script = verb_script("print('running', flush=True)", "time.sleep(60)")
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "running\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == "mnemoscope: stopped by Ctrl-C\n"
        assert process.wait() == INTERRUPTED


@pytest.mark.parametrize(
    "begin",
    [
        "from mnemoscope.__main__ import main; sys.exit(main())",  # as the installed command does
        "import runpy; runpy.run_module('mnemoscope', run_name='__main__')",
    ],
)
@pytest.mark.parametrize("module", ["mnemoscope.cli", "mnemoscope.cli.start.mine"])
def test_ctrl_c_while_the_verbs_are_still_being_imported(module: str, begin: str) -> None:
    script = f"{at_the_import_of(module, 'INT')}\n{begin}"
    done = subprocess.run([sys.executable, "-c", script, "--help"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", "mnemoscope: stopped by Ctrl-C\n")


def test_a_library_that_was_half_loaded_under_a_limit_is_too_little_memory() -> None:
    """As polars is, which then lacks a name; the same error of our own code, or without a limit, stays a bug."""
    library = "exec('def frame(): PyDataFrame', {'__name__': 'polars'}, names := {})"
    for limit, body, code in (("1 << 44", "names['frame']()", USER), ("-1", "names['frame']()", BUG)):
        script = verb_script("import resource", f"resource.setrlimit(resource.RLIMIT_AS, ({limit}, -1))", library, body)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert done.returncode == code
        assert (LITTLE in done.stderr) == (code == USER), done.stderr


def test_ctrl_c_pressed_again_while_it_is_answered() -> None:
    script = (
        f"{at_the_import_of('mnemoscope.cli', 'INT')}\n"
        "class Pressing:\n"
        "    def write(self, text):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        return sys.__stderr__.write(text)\n"
        "    def flush(self):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        sys.__stderr__.flush()\n"
        "sys.stderr = Pressing()\n"
        "from mnemoscope.__main__ import main\n"
        "code = main()\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, "--help"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", "mnemoscope: stopped by Ctrl-C\n")


def test_the_installed_command_begins_where_ctrl_c_is_answered() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"mnemoscope": "mnemoscope.__main__:main"}
