"""Options declared once: a field of a frozen dataclass states its default, its help, and its bounds or choices.

From these fields are made the command line and docs/cli.md (cli/command.py), the check of every value, what a mining
plan holds, and the words of a command that is shown. A public function writes its keywords out once more, for editors
and mypy; tests/test_side_by_side.py holds their names, defaults and help against the fields. Rules between two fields
are code in `__post_init__`.
"""

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from math import inf
from typing import Any, Literal, Self

from mnemoscope.errors import OptionError

_DECLARED = "declared"


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """What a field states beside its name, type and default."""

    help: str
    metavar: str | None = None
    """What help writes for the value; None: the choices, or N for a number."""
    keyword: str | None = None
    """The keyword in Python and the name of the option, if they are not the field's."""
    flag: str | None = None
    """The option, if it is not the keyword's, such as `--for`."""
    instead: str | None = None
    """What help shows in place of a default that says nothing."""
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    check: Callable[[Any], object] | None = None
    """Raises OptionError for a value that is not written as it must be."""
    argument: bool = False
    hidden: bool = False
    planned: bool | Literal["alike"] = False
    """Whether the field is an entry of the mining plan; `alike`: in which atlases agree that are compared."""

    def check_value(self, flag: str, value: Any) -> None:
        if self.choices and str(value) not in self.choices:
            raise OptionError(f"{flag} {value!r} is not known; choose one of {', '.join(self.choices)}")
        least, most = self.least, self.most
        if (least is not None and not least <= value < inf) or (most is not None and not value <= most):
            bounds = f"{least:g} or more" if most is None else f"{least:g} to {most:g}"
            raise OptionError(f"{flag} {value:g} is impossible; it must be {bounds}")
        if self.check is not None:
            self.check(value)


def option(default: Any = MISSING, help: str = "", **declared: Any) -> Any:
    """A field that is an option, required without a default; `declared` are entries of its Declaration."""
    return field(default=default, metadata={_DECLARED: Declaration(help=help, **declared)})


def argument(help: str, *, metavar: str, default: Any = MISSING) -> Any:
    """A field that is an argument of the command line, written without a flag."""
    return option(default, help, metavar=metavar, argument=True)


def like(kind: Any, name: str, **changed: Any) -> Any:
    """The option of another dataclass; its `default` or entries of its Declaration may be `changed`."""
    one = next(each for each in fields(kind) if each.name == name)
    default = changed.pop("default", one.default)
    return field(default=default, metadata={_DECLARED: replace(one.metadata[_DECLARED], **changed)})


def declaration_of(one: "Field[Any]") -> Declaration | None:
    """What a field declares; None of a field that is no option."""
    return one.metadata.get(_DECLARED)


def keyword_of(one: "Field[Any]") -> str:
    declared = declaration_of(one)
    return one.name if declared is None else declared.keyword or one.name


def flag_of(one: "Field[Any]") -> str:
    """The option's name on the command line: `--max-tokens`."""
    declared = declaration_of(one)
    return (declared and declared.flag) or f"--{keyword_of(one).replace('_', '-')}"


class DeclaredOptions:
    """The root of all dataclasses of options: every field is checked by what it declares. Raises OptionError."""

    def __post_init__(self) -> None:
        self.check(vars(self))

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        """Raises OptionError for a value that its field does not allow; None is always allowed."""
        for one in fields(cls):  # type: ignore[arg-type]
            declared, value = declaration_of(one), values.get(one.name)
            if declared is not None and value is not None:
                declared.check_value(flag_of(one), value)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The options that these keywords state, of dataclasses inside, too. Other keywords are ignored."""
        made = {}
        for one in fields(cls):  # type: ignore[arg-type]
            if isinstance(one.type, type) and issubclass(one.type, DeclaredOptions):
                given = values.get(one.name)
                made[one.name] = given if isinstance(given, one.type) else one.type.of(values)
            elif (keyword := keyword_of(one)) in values:
                made[one.name] = values[keyword]
        return cls(**made)

    @classmethod
    def planned_names(cls, *, alike: bool = False) -> set[str]:
        """The fields that a mining plan has; `alike`: of these in which atlases agree that are compared."""
        each = ((one.name, declaration_of(one)) for one in fields(cls))  # type: ignore[arg-type]
        return {name for name, one in each if one and (one.planned == "alike" if alike else one.planned)}

    def values(self) -> Iterator[tuple["Field[Any]", Any]]:
        """All fields with their values, those of dataclasses inside in their place."""
        for one in fields(self):  # type: ignore[arg-type]
            value = getattr(self, one.name)
            yield from value.values() if isinstance(value, DeclaredOptions) else [(one, value)]

    def keywords(self) -> dict[str, Any]:
        """What is not at its default, as keywords of Python."""
        changed = ((keyword_of(one), value) for one, value in self.values() if value != one.default)
        return {keyword: os.fspath(value) if isinstance(value, os.PathLike) else value for keyword, value in changed}

    @classmethod
    def words_of(cls, values: Mapping[str, Any]) -> list[str]:
        """The values of fields that are not at their defaults, as words of a command line, unquoted."""
        stated = ((one, values[one.name]) for one in fields(cls) if one.name in values)  # type: ignore[arg-type]
        changed = ((flag_of(one), value) for one, value in stated if value != one.default)
        return [word for flag, value in changed for word in ([flag] if value is True else [flag, str(value)])]

    def taken_by(self, function: Callable[..., Any]) -> dict[str, Any]:
        """All that a function takes by keyword only."""
        taken = inspect.signature(function).parameters
        named = {keyword_of(one): value for one, value in self.values()}
        return {name: named[name] for name, one in taken.items() if one.kind is one.KEYWORD_ONLY and name in named}
