"""The command of a verb: its arguments, options and help, made from the dataclass of its options (declared.py)."""

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from functools import wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, get_args

import typer

from mnemoscope.foundation.files import HubPath, check_spelling, locate
from mnemoscope.foundation.options.declared import DeclaredOptions, flag_of, keyword_of, option


class OutputOptions(DeclaredOptions):
    """What every verb has: it is called with `json`, and runner.py reads `debug`."""

    json: bool = option(False, "Print one JSON document on stdout, and nothing else there.")
    debug: bool = option(False, "Show the traceback of an error.")


def as_command(verb: Callable[..., None]) -> Callable[..., None]:
    """The function that typer reads, with a parameter for each option; it calls `verb(options, json=...)`."""
    kind: type[DeclaredOptions] = next(iter(inspect.signature(verb).parameters.values())).annotation

    @wraps(verb)
    def command(**values: Any) -> None:
        for given in values.values():
            check_spelling(*(given if isinstance(given, list | tuple) else [given]))
        verb(kind.of({name: _settle(name, given) for name, given in values.items()}), json=values["json"])

    shown = [*_parameters_of(kind), *_parameters_of(OutputOptions)]
    command.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in shown}
    return command


def _settle(name: str, given: Any) -> Any:
    """The value of an option; an atlas on the hub at the commit that it has now, which is told."""
    if isinstance(given, list):
        return [_settle(name, one) for one in given]
    at = settled = locate(given) if isinstance(given, Path) else given
    if isinstance(at, HubPath) and name in ("atlas", "atlases", "parts"):
        from mnemoscope.atlas.hub.reading import settle

        if (settled := settle(at)) != at:
            print(f"{at} is read as {settled}", file=sys.stderr)
    return settled


def _parameters_of(kind: type[DeclaredOptions]) -> Iterator[inspect.Parameter]:
    """Of a type with several forms, such as `str | tuple[int, int] | None`, the command line has the first."""
    for one in fields(kind):
        declared, forms = one.metadata, get_args(one.type) if isinstance(one.type, UnionType) else (one.type,)
        if isinstance(one.type, type) and issubclass(one.type, DeclaredOptions):
            yield from _parameters_of(one.type)
        if not declared:
            continue
        usual = {bool: None, int: "N"}.get(forms[0], one.name.upper())
        about: dict[str, Any] = {
            "metavar": declared["metavar"] or "|".join(declared["choices"]) or usual,
            "help": declared["help"] + (f"  [default: {declared['instead']}]" if declared["instead"] else ""),
            "show_default": one.default not in (MISSING, "") and declared["instead"] is None,
            "hidden": declared["hidden"],
        }
        how = typer.Argument(**about) if declared["argument"] else typer.Option(flag_of(one), **about)
        yield inspect.Parameter(
            keyword_of(one),
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if one.default is MISSING else one.default,
            annotation=Annotated[forms[0] | None if NoneType in forms else forms[0], how],
        )
