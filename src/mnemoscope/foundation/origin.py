"""Where a result comes from: the entry `made_by` of every result object and document (contract.md)."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any


def package_version() -> str:
    """The installed version of the package, or "unknown"."""
    try:
        return version("mnemoscope")
    except PackageNotFoundError:
        return "unknown"


def made_by(
    *, model: str | list[str] | None, atlas: str | list[str] | None, options: Mapping[str, Any], seed: int | None
) -> dict[str, Any]:
    """Fingerprint of the model, hash of the atlas's manifest (None without; lists of several), package version, options
    and seed.
    """
    return {"model": model, "atlas": atlas, "package": package_version(), "options": dict(options), "seed": seed}
