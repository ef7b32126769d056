"""Models by name and atlases by folder: what the public functions that run a model take in place of opened ones."""

import os
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, TypeVar, cast

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.models import load_model

F = TypeVar("F", bound=Callable[..., Any])


def opens(function: F) -> F:
    """Decorates a function whose `model` may also be a name that `load_model` takes, and whose `atlas` a folder."""
    own = signature(function)

    @wraps(function)
    def open_and_call(*given: Any, **named: Any) -> Any:
        bound = own.bind(*given, **named)
        model, atlas = (bound.arguments.get(name) for name in ("model", "atlas"))
        if isinstance(atlas, str | os.PathLike) and not isinstance(atlas, Atlas):
            bound.arguments["atlas"] = open_atlas(atlas)
        if isinstance(model, str | os.PathLike):
            bound.arguments["model"] = load_model(model)
        return function(*bound.args, **bound.kwargs)

    return cast(F, open_and_call)
