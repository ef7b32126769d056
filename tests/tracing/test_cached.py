"""A continuation with attention's keys and values kept between steps: the tokens and numbers of whole runs."""

import pytest

from mining.conftest import byte_tokenizer
from mnemoscope.models import load_model
from mnemoscope.tracing import generate
from models.conftest import CASES, build

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
