"""The reference: every public name stands in docs/api.md and says what its parameters mean."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import mnemoscope as ms
from mnemoscope.atlas.read import AtlasLayer, Memory
from mnemoscope.attribution import Attribution, PromptsAttribution, PromptsDifference, RunDifference
from mnemoscope.auditing import Audit
from mnemoscope.comparison import AtlasComparison
from mnemoscope.tracing import Comparison, Trace

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
CLASSES = (
    *(ms.Atlas, AtlasLayer, Memory, ms.MemoryId, ms.LanguageModel, Trace, Comparison, Attribution),
    *(PromptsAttribution, RunDifference, PromptsDifference, AtlasComparison, Audit),
)


def methods() -> dict[str, Any]:
    found = {f"{kind.__name__}.{name}": getattr(kind, name) for kind in CLASSES for name in dir(kind) if name[0] != "_"}
    return {name: method for name, method in found.items() if inspect.isfunction(method)}


def functions() -> dict[str, Any]:
    return {name: getattr(ms, name) for name in ms.__all__ if inspect.isfunction(getattr(ms, name))}


@pytest.mark.parametrize("name", functions())
def test_every_argument_of_a_function_is_explained(name: str) -> None:
    said, _, arguments = inspect.getdoc(functions()[name]).partition("\nArgs:\n")
    assert said.strip()
    explained = dict(re.findall(r"^ +(\w+): (\S.*)$", arguments, re.MULTILINE))
    assert list(explained) == list(inspect.signature(functions()[name]).parameters)


@pytest.mark.parametrize("name", methods())
def test_the_text_of_a_method_names_its_parameters(name: str) -> None:
    """By their words, one or many: "of a layer", "some `columns`"."""
    public = methods()[name]
    text = (inspect.getdoc(public) or "").replace("memories", "memory")
    for one in inspect.signature(public).parameters:
        word = one.replace("memories", "memory").removesuffix("s")
        assert one == "self" or re.search(rf"\b{word}s?\b", text, re.IGNORECASE), one


@pytest.mark.parametrize("kind", CLASSES)
def test_what_they_return_does_too(kind: type) -> None:
    assert re.search(rf"autoclass:: (mnemoscope\.[\w.]+\.)?{kind.__name__}\n   :members:", PAGE)


def test_functions_and_classes_are_looked_at() -> None:
    assert {"mine", "chart", "names", "trace"} <= functions().keys()
    assert {"Atlas.triggers", "AtlasLayer.table", "Memory.triggers", "LanguageModel.coefficients"} <= methods().keys()
