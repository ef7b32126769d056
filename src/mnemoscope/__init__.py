"""Mnemoscope: read the feed-forward layers of a language model as key-value memories.

The public names are loaded when they are first used (PEP 562), so importing the package is instant and needs no torch.
"""

import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from threading import current_thread, main_thread
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mnemoscope import errors

if TYPE_CHECKING:
    from mnemoscope.atlas import Atlas, open_atlas, verify
    from mnemoscope.attribution import attribute, diff, restore
    from mnemoscope.auditing import audit
    from mnemoscope.comparison import compare
    from mnemoscope.foundation.memory_names import MemoryId
    from mnemoscope.mining import extend, merge, mine
    from mnemoscope.mining.lenses.lens_pass import fit_lenses
    from mnemoscope.models import LanguageModel, load_model
    from mnemoscope.neuron_names import hook, names
    from mnemoscope.questions import answer
    from mnemoscope.saved_results import open_result
    from mnemoscope.search.found import search
    from mnemoscope.sharing.export import export
    from mnemoscope.sharing.graph import write_graph
    from mnemoscope.sharing.push import push
    from mnemoscope.show.export.writing import write_report
    from mnemoscope.show.figures.figure1 import figure1
    from mnemoscope.show.figures.sections import chart
    from mnemoscope.tracing import intervene, mask_each, trace
    from mnemoscope.training import train

__all__ = [
    "Atlas",
    "LanguageModel",
    "MemoryId",
    "answer",
    "attribute",
    "audit",
    "chart",
    "compare",
    "diff",
    "errors",
    "export",
    "extend",
    "figure1",
    "fit_lenses",
    "hook",
    "intervene",
    "load_model",
    "mask_each",
    "merge",
    "mine",
    "names",
    "open_atlas",
    "open_result",
    "push",
    "restore",
    "search",
    "trace",
    "train",
    "verify",
    "write_graph",
    "write_report",
]

_ROOMS = {
    "atlas": ("Atlas", "open_atlas", "verify"),
    "attribution": ("attribute", "diff", "restore"),
    "auditing": ("audit",),
    "show.figures.figure1": ("figure1",),
    "show.figures.sections": ("chart",),
    "show.export.writing": ("write_report",),
    "comparison": ("compare",),
    "foundation.memory_names": ("MemoryId",),
    "mining": ("extend", "merge", "mine"),
    "mining.lenses.lens_pass": ("fit_lenses",),
    "models": ("LanguageModel", "load_model"),
    "neuron_names": ("hook", "names"),
    "questions": ("answer",),
    "saved_results": ("open_result",),
    "search.found": ("search",),
    "sharing.graph": ("write_graph",),
    "sharing.export": ("export",),
    "sharing.push": ("push",),
    "tracing": ("intervene", "mask_each", "trace"),
    "training": ("train",),
}


class _Package(ModuleType):
    """A room that is imported takes its name in the package: `search` stays the function nevertheless."""

    @property
    def search(self) -> Any:
        return __getattr__("search")

    @search.setter
    def search(self, room: ModuleType) -> None:
        pass


sys.modules[__name__].__class__ = _Package


@contextmanager
def _whole() -> Iterator[None]:
    """Raises a Ctrl-C that comes inside when the block has ended: what of torch is half-loaded can never be loaded."""
    ours = current_thread() is main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    came: list[int] = []
    if ours:
        signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt


def __getattr__(name: str) -> Any:
    for room, names in _ROOMS.items():
        if name in names:
            with _whole():
                if "ipykernel" in sys.modules:
                    # Without ipywidgets tqdm warns at its first import, on the stderr that is saved with a notebook.
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        import_module("tqdm.auto")
                return getattr(import_module(f"mnemoscope.{room}"), name)
    raise AttributeError(f"module 'mnemoscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
