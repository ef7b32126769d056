"""Tests of what is compiled as the package is installed, which skip where nothing was, but not in CI."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest
import torch

Function = TypeVar("Function")


def require_compiled(found: Function | None) -> Function:
    """The function, if there is one."""
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail("nothing was compiled as the package was installed")
        pytest.skip("nothing was compiled as the package was installed")
    return found


@contextmanager
def in_two_threads() -> Iterator[None]:
    """Rows are dealt to two threads, whatever this machine has."""
    usual = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        yield
    finally:
        torch.set_num_threads(usual)
