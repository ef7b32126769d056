"""What a test needs and does not find: it skips and says so, but fails where CI=true. Not a test itself."""

import os
from typing import NoReturn

import pytest


def refuse(reason: str) -> NoReturn:
    """Skips the test for this reason; fails where `.ci/run` was to install it."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason}: .ci/run installs it, and CI must not skip", pytrace=False)
    pytest.skip(reason)
