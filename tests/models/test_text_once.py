"""The tokens of a text behind a prompt: both are encoded together, whatever the piece alone would read as."""

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from mnemoscope.attribution import attribute
from mnemoscope.errors import PromptError
from mnemoscope.models import LanguageModel, load_model
from models.conftest import build
from models.small_tokenizers import byte_fallback, byte_level, unigram


def model_with(tokenizer: Tokenizer, **special: str) -> LanguageModel:
    return load_model(build("llama"), tokenizer=PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special))


@pytest.fixture(scope="module")
def llama() -> LanguageModel:
    """Its tokenizer puts a space before every text."""
    return model_with(byte_fallback(), bos_token="<s>")


def texts_after(model: LanguageModel, *asked: Any) -> list[str]:
    return [model.vocabulary()[0][token] for token in model.tokens_after(*asked)]


def test_no_space_is_read_that_nobody_wrote_and_none_is_lost(llama: LanguageModel) -> None:
    assert texts_after(llama, "a b", " a") == [" a"]
    assert texts_after(llama, "a b", "a") == ["a"], "alone it is ' a'"
    assert texts_after(llama, "a b ab", " a", 2) == [" a"], "alone it is ' ', ' a'"
    assert texts_after(llama, "a b ab", "b", -3) == ["b"]
    assert texts_after(model_with(byte_level()), "the cat", " sat") == [" ", "sat"]
    assert texts_after(model_with(unigram()), "the", " cat") == [" ", "c", "at"]
    assert load_model(build("llama"), tokenizer="ids").tokens_after("12 5 7", " 9 3", 1) == [9, 3]


@pytest.mark.parametrize(
    ("prompt", "text", "position", "said"),
    [
        ("the c", "at", None, "'at' behind 'the c' is not read"),
        ("the cat", "", None, "'' behind 'the cat' is not read"),
        ("é cat", " sat", 0, "' sat' behind 'é' is not read"),
        ("the cat", "\udc80", None, "the answer is not text: character 0 is half of one"),
    ],
)
def test_what_changes_the_prompts_own_tokens_is_refused(
    prompt: str, text: str, position: int | None, said: str
) -> None:
    with pytest.raises(PromptError) as refused:
        model_with(byte_level()).tokens_after(prompt, text, position)
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)


def test_a_space_that_joins_the_answer_is_not_the_prompts(llama: LanguageModel) -> None:
    with pytest.raises(PromptError, match="'a' behind 'b ' is not read as the prompt's own tokens and more"):
        llama.tokens_after("b ", "a")


@pytest.mark.parametrize("position", [0, 2, 3])
def test_answers_at_a_position_are_asked_about_where_they_stand(llama: LanguageModel, position: int) -> None:
    """Both with their space: that is not "what both begin with", put behind the prompt."""
    tokens = llama.encode(["a b aa"])[0]
    assert [llama.vocabulary()[0][token] for token in tokens] == [" a", " ", "b", " a", "a"]
    found = attribute(llama, "a b aa", target=" a", against=" b", position=position, singles=0, top=0)
    with torch.no_grad():
        ids = torch.tensor([llama.reading.frame(tokens[: position + 1])])
        logits = llama.anatomy.model(ids).logits[0, -1].double()
    assert (found.position, found.shared) == (position, 0)
    assert (found.target.text, found.against and found.against.text) == (" a", " ")
    assert found.difference == pytest.approx(float(logits[tokens[0]] - logits[tokens[1]]), abs=1e-5)


def test_an_answer_inside_a_word_is_refused_in_place_of_one_that_nobody_wrote() -> None:
    with pytest.raises(PromptError, match="begin it with the space between them"):
        attribute(model_with(byte_level()), "the c", target="at", singles=0)
