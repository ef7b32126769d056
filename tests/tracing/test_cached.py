"""A continuation with attention's keys and values kept between steps: the tokens and numbers of whole runs."""

import copy
from typing import Any

import pytest
import torch

from mining.conftest import byte_tokenizer
from mnemoscope.attribution import diff
from mnemoscope.models import load_model
from mnemoscope.tracing import generate
from models.conftest import CASES, build
from models.test_company import build_windowed, longrope

TOKENS = 8
CHANGED = ("L0.M3=5", "L1.M4=3@4", "L1.M2*-2@9")


@pytest.mark.fast(4)
@pytest.mark.parametrize("name", list(CASES))
def test_every_family_writes_the_same_with_and_without_a_cache(name: str) -> None:
    model = load_model(build(name), tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))
    for changes in ((), CHANGED, ("L0.M3=5@last",)):
        whole, cached = (
            list(generate(model, "the cat", tokens=TOKENS, interventions=changes, cached=cached))
            for cached in (False, True)
        )
        assert [step.token for step in cached] == [step.token for step in whole]
        for one, other in zip(cached, whole, strict=True):
            assert one.probability == pytest.approx(other.probability, rel=1e-3)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox"])
def test_a_step_reads_what_is_new(name: str) -> None:
    model = load_model(build(name), tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))
    begun = []
    for step in generate(model, "the cat", tokens=TOKENS, cached=True, interventions=CHANGED):
        begun.append((step.position, model.begun))
    # Behind the beginning token, all but the token before; the first step is compared with a run of the whole text.
    assert [count for _, count in begun[2:]] == [position for position, _ in begun[2:]]
    for changes in ((), ("L0.M3=5@last",)):
        list(generate(model, "the cat", tokens=2, interventions=changes))
        assert model.begun == 0


def plain(network: Any, tokens: list[int], count: int) -> list[int]:
    """The best tokens, each from a run of the whole text."""
    ids = list(tokens)
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(network(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(tokens) :]


def test_keys_that_another_rotary_table_turned_are_not_kept() -> None:
    model = load_model(longrope(), tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))
    expected = plain(model.anatomy.model, model.reading.frame(model.prompt_tokens("the cat")), 30)
    for boundaries in ((16,), tuple(range(16, 64))):
        model.boundaries, found, whole = boundaries, [], []
        for step in generate(model, "the cat", tokens=30, cached=True):
            found.append(step.token.id)
            whole += [model.reading.columns(step.position)] * (model.begun == 0)
        assert found == expected
        # All is read at first, once more as a proof, and where the table is another one than a step before.
        assert whole == [4, 5, *(length + 1 for length in boundaries if length < 33)]


def test_two_models_part_where_runs_of_the_whole_text_do() -> None:
    """The second says what the first does until long behind the boundary, where one of its answers is made likelier."""
    torch.manual_seed(0)
    network = longrope()
    first = load_model(network, tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))
    start = first.reading.frame(first.prompt_tokens("the cat sat on"))
    one = plain(network, start, 30)
    late = next(at for at in range(14, 30) if one[at] not in one[:at])
    other = copy.deepcopy(network)
    with torch.no_grad():
        other.lm_head.weight[one[late]] *= 0.5
    assert plain(other, start, 30)[: late + 1] != one[: late + 1] == [*plain(other, start, late), one[late]]
    found = diff(first, "the cat sat on", other=load_model(other, tokenizer=first.reader.tokenizer), top=0)
    assert (found.ids[0][len(start) - 1 :], found.said[0].id) == (tuple(one[:late]), one[late])


@pytest.mark.full
@pytest.mark.parametrize("name", ["mistral", "gemma2", "gemma3"])
def test_a_window_hides_the_same_kept_or_not(name: str) -> None:
    model = load_model(build_windowed(name), tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))
    whole, cached = (list(generate(model, "the cat", tokens=30, cached=keep)) for keep in (False, True))
    assert [step.token for step in cached] == [step.token for step in whole]
    assert model.begun > 16
