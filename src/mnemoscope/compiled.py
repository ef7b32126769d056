"""The functions of this package that are compiled C, called by ctypes, which lets go of Python meanwhile.

They are compiled as the package is installed, where there is a compiler; elsewhere PyTorch does what they do, number
for number.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeVar

_LIBRARY = "mnemoscope._compiled"

Caller = TypeVar("Caller")


def compiled_function(name: str, arguments: str, result: type[Any] | None = None) -> Callable[..., Any] | None:
    """The function of this name, or None where it was not compiled or is another system's or an older one.

    `arguments`: one letter for each, p for a pointer, n for an integer of 64 bits.
    """
    library = _library()
    try:
        function = getattr(library, name) if library is not None else None
    except AttributeError:  # of older code
        return None
    if function is not None:
        function.restype = result
        function.argtypes = [{"p": ctypes.c_void_p, "n": ctypes.c_int64}[letter] for letter in arguments]
    return function


def caller_of(
    function: Callable[..., Any] | None, call: Callable[[Callable[..., Any]], Caller], works: Callable[[Caller], bool]
) -> Caller | None:
    """What calls a function that was compiled, if it does what it should; None elsewhere."""
    caller = call(function) if function is not None else None
    return caller if caller is not None and works(caller) else None


@cache
def _library() -> ctypes.CDLL | None:
    spec = find_spec(_LIBRARY)
    try:
        return ctypes.CDLL(spec.origin) if spec is not None and spec.origin is not None else None
    except OSError:  # of another system
        return None
