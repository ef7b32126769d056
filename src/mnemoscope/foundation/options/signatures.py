"""Functions with many options: their signature, for `help` and editors that run Python, is made from dataclasses."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, TypeVar, get_type_hints

from mnemoscope.foundation.options.model_options import KEYWORDS, write_max_memory

R = TypeVar("R")


def takes_options(function: Callable[..., R]) -> Callable[..., R]:
    """Replaces each parameter that is a dataclass of options by one keyword per field, also of options inside it.

    The keyword is the field's name, or the one that `KEYWORDS` gives; the dataclass itself is taken, too. Raises
    TypeError for an unknown keyword, and what the dataclass raises.
    """
    own = inspect.signature(function, eval_str=True)
    options = {name: each.annotation for name, each in own.parameters.items() if is_dataclass(each.annotation)}
    shown = [
        each
        for name, one in own.parameters.items()
        for each in (_parameters_of(options[name]) if name in options else [one])
    ]
    signature = own.replace(parameters=shown)

    @wraps(function)
    def call(*given: Any, **named: Any) -> R:
        if options.keys() <= named.keys():
            return function(*given, **named)
        signature.bind(*given, **named)
        made = {name: _made_from(kind, named) for name, kind in options.items()}
        return function(*given, **named, **made)

    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def _parameters_of(kind: Any) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(kind)
    for field in fields(kind):
        if is_dataclass(hints[field.name]):
            yield from _parameters_of(hints[field.name])
        else:
            name, annotation = KEYWORDS.get(field.name, field.name), hints[field.name]
            yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=annotation)


def _made_from(kind: Any, named: dict[str, Any]) -> Any:
    """The options of these keywords, which are taken out of `named`."""
    hints, values = get_type_hints(kind), {}
    for field in fields(kind):
        keyword = KEYWORDS.get(field.name, field.name)
        if is_dataclass(hints[field.name]):
            values[field.name] = _made_from(hints[field.name], named)
        elif keyword in named:
            value = named.pop(keyword)
            values[field.name] = write_max_memory(value) if keyword == "max_memory" else value
    return kind(**values)
