"""Public functions take a model by name and an atlas by folder, as their docstrings say."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import mnemoscope as ms
from mnemoscope.attribution import attribute_prompts, diff_prompts
from mnemoscope.auditing import audit
from mnemoscope.errors import ModelNotFound, OptionError
from mnemoscope.models.opening.handmade.models import PLANTED_SENTENCES
from mnemoscope.tracing import causal_check, compare, generate

NAME, PROMPT = "handmade:planted", "the old"


@pytest.fixture(scope="module")
def model() -> ms.LanguageModel:
    return ms.load_model(NAME)


@pytest.fixture
def atlas(planted: Path) -> ms.Atlas:
    return ms.open_atlas(planted)


def asked(model: Any, atlas: Any) -> dict[str, Any]:
    rows: list[Any] = [{"prompt": PROMPT, "other_prompt": "the new", "for": " mat", "against": " house"}]
    return {
        "trace": ms.trace(model, PROMPT),
        "compare": compare(model, PROMPT, {"L0.M1": 2.0}),
        "attribute": ms.attribute(model, PROMPT, atlas=atlas, singles=2, top=2),
        "attribute_prompts": attribute_prompts(model, rows, atlas=atlas, top=2),
        "diff": ms.diff(model, PROMPT, other_prompt="the new", target=" mat", against=" house", atlas=atlas, top=2),
        "diff_prompts": diff_prompts(model, rows, atlas=atlas, top=2),
        "audit": audit(model, list(PLANTED_SENTENCES[:1]), alternatives=19, atlas=atlas),
        "causal_check": causal_check(model, atlas, "L0.M0", controls=1, triggers=2),
    }


def test_a_name_and_a_folder_stand_for_what_they_open(model: ms.LanguageModel, atlas: ms.Atlas) -> None:
    opened, named = asked(model, atlas), asked(NAME, str(atlas.path))
    for function, found in named.items():
        assert found.to_dict() == opened[function].to_dict(), function
    one, other = (list(generate(each, PROMPT, tokens=2)) for each in (model, NAME))  # type: ignore[arg-type]
    assert one == other
    assert ms.attribute(model=NAME, prompt=PROMPT, atlas=Path(atlas.path), singles=0, top=0).difference  # type: ignore[arg-type]


def test_a_name_of_nothing_is_said_as_load_model_says_it(model: ms.LanguageModel) -> None:
    with pytest.raises(ModelNotFound):
        ms.trace("handmade:nothing", PROMPT)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"^model='handmade:planted' is a name"):
        ms.intervene(NAME, {"L0.M0": 0.0}).__enter__()  # type: ignore[arg-type]


def test_coefficients_of_several_prompts_say_whose_they_are(model: ms.LanguageModel) -> None:
    found = model.coefficients(["the old", "the cat sat"], layers=iter([1]))
    assert found.columns == ["text", "layer", "memory", "position", "token", "coefficient"]
    for text in ("the old", "the cat sat"):
        assert found.filter(pl.col("text") == text).drop("text").equals(model.coefficients(text, [1]))
    for wrong in ([], ["the", 3], 7, None):
        with pytest.raises(OptionError, match="is neither a text nor a list of texts"):
            model.coefficients(wrong)  # type: ignore[arg-type]
