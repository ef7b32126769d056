"""The data of a memory's page."""

from collections.abc import Sequence
from typing import Any

from mnemoscope.memory import MemoryId
from mnemoscope.web.site import Site


def memory_view(site: Site, wanted: MemoryId, *, carried: Sequence[str] = ()) -> dict[str, Any]:
    """The memory's triggers and value."""
    memory = site.atlas[wanted]
    return {
        "memory": str(wanted),
        "triggers": memory.triggers(sign=None).to_dicts(),
        "value": memory.value().to_dicts()[0],
        "set": list(carried),
    }
