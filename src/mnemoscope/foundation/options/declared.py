"""Options declared once: a field of a frozen dataclass states its default, its help, and its bounds or choices.

From these fields are made the command line and docs/cli.md (cli/command.py), the check of every value, what a mining
plan holds, and the words of a command that is shown. A public function writes its keywords out once more, for editors
and mypy; tests/test_side_by_side.py holds their names, defaults and help against the fields. Rules between two fields
are code in `__post_init__`.
"""

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from math import inf
from typing import Any, ClassVar, Literal, Self, dataclass_transform

from mnemoscope.errors import OptionError


def option(
    default: Any = MISSING,
    help: str = "",
    *,
    argument: bool = False,  # the command line has it without a flag
    metavar: str | None = None,  # what help writes for the value; None: the choices, N, or the name in capitals
    keyword: str | None = None,  # the keyword in Python and the name of the option, if they are not the field's
    flag: str | None = None,  # the option, if it is not the keyword's, such as `--for`
    instead: str | None = None,  # what help shows in place of a default that says nothing
    least: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] = (),
    check: Callable[[Any], object] | None = None,  # raises OptionError for a value that is not written as it must be
    hidden: bool = False,  # help leaves it out
    planned: bool | Literal["alike"] = True,  # of mining and of a model; "alike": compared atlases agree in it
) -> Any:
    """A field that is an option, required without a default. `help` is shown by the command and in `Args:`."""
    declared = locals()
    del declared["default"]
    return field(default=default, metadata=declared)


def like(kind: Any, name: str, **changed: Any) -> Any:
    """The option of another dataclass; its `default`, or what else it states, may be `changed`."""
    one = next(each for each in fields(kind) if each.name == name)
    return field(default=changed.pop("default", one.default), metadata={**one.metadata, **changed})


def keyword_of(one: "Field[Any]") -> str:
    keyword: str = one.metadata.get("keyword") or one.name
    return keyword


def flag_of(one: "Field[Any]") -> str:
    """The option's name on the command line: `--max-tokens`."""
    flag: str = one.metadata.get("flag") or f"--{keyword_of(one).replace('_', '-')}"
    return flag


@dataclass_transform(kw_only_default=True, frozen_default=True)
class DeclaredOptions:
    """The root of all options: every class below it is a frozen dataclass, whose fields are checked by what they
    declare. Raises OptionError.
    """

    __dataclass_fields__: ClassVar[dict[str, "Field[Any]"]]

    def __init_subclass__(cls, *, kw_only: bool = True) -> None:
        dataclass(frozen=True, kw_only=kw_only)(cls)

    def __post_init__(self) -> None:
        self.check(vars(self))

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        """Raises OptionError for a value that its field does not allow; None is always allowed."""
        for one in fields(cls):
            if one.metadata and (value := values.get(one.name)) is not None:
                _check(value, flag_of(one), one.metadata)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The options that these keywords state, of dataclasses inside, too. Other keywords are ignored."""
        made = {}
        for one in fields(cls):
            if isinstance(one.type, type) and issubclass(one.type, DeclaredOptions):
                given = values.get(one.name)
                made[one.name] = given if isinstance(given, one.type) else one.type.of(values)
            elif (keyword := keyword_of(one)) in values:
                made[one.name] = values[keyword]
        return cls(**made)

    @classmethod
    def planned_names(cls, *, alike: bool = False) -> set[str]:
        """The fields that a mining plan has; `alike`: of these in which atlases agree that are compared."""
        kept = ("alike",) if alike else (True, "alike")
        return {one.name for one in fields(cls) if one.metadata.get("planned") in kept}

    def values(self) -> Iterator[tuple["Field[Any]", Any]]:
        """All fields with their values, those of dataclasses inside in their place."""
        for one in fields(self):
            value = getattr(self, one.name)
            yield from value.values() if isinstance(value, DeclaredOptions) else [(one, value)]

    def keywords(self) -> dict[str, Any]:
        """What is not at its default, as keywords of Python."""
        changed = ((keyword_of(one), value) for one, value in self.values() if value != one.default)
        return {keyword: os.fspath(value) if isinstance(value, os.PathLike) else value for keyword, value in changed}

    @classmethod
    def words_of(cls, values: Mapping[str, Any]) -> list[str]:
        """The values of fields that are not at their defaults, as words of a command line, unquoted."""
        stated = ((one, values[one.name]) for one in fields(cls) if one.name in values)
        changed = ((flag_of(one), value) for one, value in stated if value != one.default)
        return [word for flag, value in changed for word in ([flag] if value is True else [flag, str(value)])]

    def taken_by(self, function: Callable[..., Any]) -> dict[str, Any]:
        """All that a function takes by keyword only."""
        taken = inspect.signature(function).parameters
        named = {keyword_of(one): value for one, value in self.values()}
        return {name: named[name] for name, one in taken.items() if one.kind is one.KEYWORD_ONLY and name in named}


def _check(value: Any, flag: str, declared: Mapping[str, Any]) -> None:
    choices, least, most = (declared[name] for name in ("choices", "least", "most"))
    if choices and str(value) not in choices:
        raise OptionError(f"{flag} {value!r} is not known; choose one of {', '.join(choices)}")
    if least is not None and not (least <= value < inf if most is None else least <= value <= most):
        bounds = f"{least:g} or more" if most is None else f"{least:g} to {most:g}"
        raise OptionError(f"{flag} {value:g} is impossible; it must be {bounds}")
    if declared["check"] is not None:
        declared["check"](value)
