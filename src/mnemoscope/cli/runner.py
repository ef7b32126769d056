"""Common behaviour of all verbs: exit codes, one plain line on stderr, and one JSON document on stdout.

Exit code 0; 2 with one plain line last on stderr for anything that the user can fix, including usage errors; 130 after
Ctrl-C; 75 after SIGTERM or SIGUSR1; 1 for a bug. `--debug` shows tracebacks. While a verb runs, control codes are
filtered from stdout and stderr, since names and texts of an atlas, a model or a corpus may be untrusted. Knows no room.
"""

import errno
import io
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from shutil import get_terminal_size
from typing import Any, TextIO, TypeVar, cast, final

import typer

from mnemoscope.errors import Interrupted, MnemoscopeError, StoreFailed, Terminated, command_line
from mnemoscope.foundation.formatting import json_safe, show_controls
from mnemoscope.foundation.heap import ran_out
from mnemoscope.foundation.progress import StopSignal

T = TypeVar("T")

BUG, USER, INTERRUPTED, TERMINATED = 1, 2, Interrupted.exit_code, Terminated.exit_code


@final
class _Output:
    """A stream that turns write errors into StoreFailed; a closed pipe (`| head`) stays BrokenPipeError."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._try(lambda: self._stream.write(text))

    def flush(self) -> None:
        self._try(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @staticmethod
    def _try(write: Callable[[], T]) -> T:
        try:
            return write()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise StoreFailed(f"the output cannot be written: {error.strerror or error}") from error


class _ClosedStream(io.StringIO):
    """Replaces a stream that was closed before the process began."""

    def write(self, _text: str) -> int:
        raise OSError(errno.EBADF, "it was closed before the command began")


def _drop(stream: TextIO) -> None:
    """Redirects a stream to the null device, so that the interpreter does not complain about unwritten data at exit."""
    with suppress(OSError):  # a stream without a number
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@dataclass
class _Document:
    stream: TextIO
    arguments: tuple[str, ...] = ()
    written: bool = False


@final
class FilteredStream:
    """A text stream that makes control codes visible; `stream` is the target."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        if not text.replace("\n", "").isprintable():
            text = show_controls(text)
        return self.stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def stream_behind(stream: TextIO) -> TextIO:
    """The target of a filtered stream, for what filters its own texts and writes escape sequences; else the stream."""
    return stream.stream if isinstance(stream, FilteredStream) else stream


_DIM = re.compile("(\x1b\\[22?m)")
_C1 = re.compile("[\x7f-\x9f]")
"""Control codes that JSON leaves unescaped but terminals act on."""

_document: ContextVar[_Document | None] = ContextVar("document", default=None)


def arguments_given() -> list[str]:
    """The words of the running command, its verb first; empty outside of `run`."""
    document = _document.get()
    return [] if document is None else list(document.arguments)


def terminal_columns() -> int | None:
    """The width of the terminal on stdout; None for a pipe or a file, for which nothing is cut."""
    return get_terminal_size().columns if sys.stdout.isatty() else None


def print_shown(text: str) -> None:
    """Prints a text for a terminal, whose dim parts (`rendering.Pale`) stay dim; other control codes become visible."""
    parts = _DIM.split(text)
    written = "".join(part if at % 2 else show_controls(part) for at, part in enumerate(parts))
    stream = stream_behind(sys.stdout) if len(parts) > 1 else sys.stdout
    print(written, file=stream)


def emit(value: object) -> None:
    """Prints the one JSON document of a command called with `--json`; numbers that are not finite become null, and all
    control codes are escaped.
    """
    document = _document.get() or _Document(sys.stdout)
    if document.written:
        raise RuntimeError("a command printed two JSON documents")
    document.written = True
    text = json.dumps(json_safe(value), indent=1, ensure_ascii=False, allow_nan=False)
    document.stream.write(_C1.sub(lambda code: f"\\u{ord(code[0]):04x}", text) + "\n")
    document.stream.flush()


def run(app: Callable[..., Any], arguments: list[str]) -> int:
    """Runs `app` on the arguments and returns the exit code; any error ends as one plain line."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    debug, as_json = "--debug" in options, "--json" in options
    # The numbers of closed streams are occupied, so that no file of ours gets one, to which libraries would write.
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number
            setattr(sys, name, _ClosedStream())
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")
    streams, stderr = (sys.stdout, sys.stderr), sys.stderr
    stdout = cast(TextIO, _Output(sys.stdout))
    token = _document.set(_Document(stdout, tuple(arguments)))
    try:
        sys.stdout, sys.stderr = cast(TextIO, FilteredStream(stdout)), cast(TextIO, FilteredStream(stderr))
        if as_json and "--help" not in options:
            # Output of libraries must not mix with the document.
            sys.stdout = sys.stderr
        with command_line():
            code = _exit_code(app, arguments or ["--help"], debug=debug, as_json=as_json)
        try:
            stdout.flush()
        except StoreFailed as error:
            code = code or _refuse(error, debug=debug, as_json=False)
            _drop(stdout)
    except BrokenPipeError:  # the reader (`| head`) has ended
        _drop(stdout)
        code = 0
    finally:
        sys.stdout, sys.stderr = streams
        _document.reset(token)
    return code


def _exit_code(app: Callable[..., Any], arguments: list[str], *, debug: bool, as_json: bool) -> int:
    try:
        code = app(args=arguments, prog_name="mnemoscope", standalone_mode=False)
        if code == INTERRUPTED:  # typer turns Ctrl-C into this code silently
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except BrokenPipeError:
        raise
    except StopSignal as stop:
        return _refuse(stop, debug=debug, as_json=as_json)
    except SystemExit as leave:
        # Typer turns a broken pipe into exit code 1.
        if isinstance(leave.__context__, BrokenPipeError):
            raise leave.__context__ from None
        raise
    except typer.Exit as leave:
        return leave.exit_code
    except (Exception, KeyboardInterrupt) as error:
        return _refuse(error, debug=debug, as_json=as_json)


def _line_and_code(error: BaseException) -> tuple[str, int]:
    if isinstance(error, typer.TyperException):
        return f"{error.format_message()} (`mnemoscope --help` explains)", USER
    if isinstance(error, MnemoscopeError):
        return str(error), error.exit_code
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return "stopped by Ctrl-C", INTERRUPTED
    if isinstance(error, StopSignal):
        return str(error), TERMINATED
    if isinstance(error, OSError) and error.filename is not None:
        return f"cannot use {os.fsdecode(error.filename)}: {error.strerror}", USER
    if isinstance(error, ModuleNotFoundError):
        line = f"{error.name} is not installed, and a reader's install has no package that runs models, such as torch"
        return f"{line}; install the whole: `pip install -c constraints.txt -e .`", USER
    if ran_out(error):
        return "there is too little memory; free some, or raise the limit that `ulimit -v` shows", USER
    return f"a bug in mnemoscope: {type(error).__name__}: {error}; please report it with what --debug shows", BUG


def _refuse(error: BaseException, *, debug: bool, as_json: bool) -> int:
    """Prints one plain line; with `--json` also a document on stdout, unless one was written."""
    line, code = _line_and_code(error)
    line = " ".join(line.split())
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    document = _document.get()
    if as_json and document is not None and not document.written:
        with suppress(StoreFailed):  # which may be the reported error
            emit({"error": type(error).__name__, "message": line, "exit_code": code})
    with suppress(OSError, StoreFailed):
        print(f"mnemoscope: {line}", file=sys.stderr, flush=True)
    return code
