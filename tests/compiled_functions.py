"""Tests of what is compiled as the package is installed, which skip where nothing was, but not in CI."""

import os
from typing import TypeVar

import pytest

Function = TypeVar("Function")


def require_compiled(found: Function | None) -> Function:
    """The function, if there is one."""
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail("nothing was compiled as the package was installed")
        pytest.skip("nothing was compiled as the package was installed")
    return found
