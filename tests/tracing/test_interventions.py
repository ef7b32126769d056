"""Changes of memories: how they are written, what they do, and that they never leak."""

import asyncio
import contextvars
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mining.conftest import byte_tokenizer
from mining.slow_model import SlowTransformer
from mnemoscope.errors import InterventionError
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.foundation.options.model_options import ModelOptions
from mnemoscope.models import LanguageModel, load_model, read_coefficients
from mnemoscope.tracing import Intervention, as_python, intervene, interventions_of, trace
from models.conftest import build
from tracing.slow_trace import ablated

FAMILIES = ("gpt2", "opt", "opt-350m", "gpt_neox", "gemma2", "llama", "falcon")
WORDS = [40, 41, 42, 43, 44]


def tiny(name: str) -> tuple[LanguageModel, SlowTransformer]:
    hf = build(name)
    model = load_model(hf, tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))
    return model, SlowTransformer(hf, beginning=0)


def hooks(model: LanguageModel) -> int:
    modules = list(model.anatomy.model.modules())
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in modules)


IDS = torch.tensor([[0, *WORDS]])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("L10.M222=0", Intervention(MemoryId(10, 222))),
        ("L10.M222*2", Intervention(MemoryId(10, 222), "scale", 2.0)),
        ("L10.M222=0@last", Intervention(MemoryId(10, 222), "set", 0.0, "last")),
        ("L10.M222=-1.5e-3@5", Intervention(MemoryId(10, 222), "set", -0.0015, 5)),
        (" L0.M1 = 2 @ all ", Intervention(MemoryId(0, 1), "set", 2.0, "all")),
    ],
)
def test_they_are_read_as_written(text: str, expected: Intervention) -> None:
    assert Intervention.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "L1.M2", "L1.M2=", "L1.M2=x", "M2=0", "L1.M2=0@", "L1.M2=0@-1", "L1.M2=0@first", "L1.M2=nan"),
        *("L1.M2=1e999", "L1.M2=٣", "L1.M2=0@٣", "L1.M2=0@²"),
        pytest.param("L1.M2=0@" + "9" * 5_000, id="5,000 digits"),
    ],
)
def test_what_is_no_change_is_refused(text: str) -> None:
    kinds = (f"{text!r} is not a change", "L1.M2 cannot be ")
    with pytest.raises(InterventionError) as refused:
        Intervention.parse(text)
    assert str(refused.value).startswith(kinds[text in ("L1.M2=0@-1", "L1.M2=nan", "L1.M2=1e999")])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"how": "add"}, "changed by 'add'"),
        ({"value": True}, "set to True"),
        ({"value": "1"}, "set to '1'"),
        ({"value": float("-inf"), "how": "scale"}, "scaled by -inf"),
        *(({"at": at}, f"changed at {at!r}") for at in (-1, True, 1.0, "first")),
    ],
    ids=str,
)
def test_what_can_be_a_change_in_no_model_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InterventionError, match=rf"^L0\.M1 cannot be {said};"):
        Intervention(MemoryId(0, 1), **change)


@given(
    st.builds(
        Intervention,
        st.builds(MemoryId, st.integers(0, 99), st.integers(0, 9999)),
        st.sampled_from(["set", "scale"]),
        st.floats(allow_nan=False, allow_infinity=False),
        st.one_of(st.sampled_from(["all", "last"]), st.integers(0, 999)),
    )
)
def test_writing_and_reading_are_inverse(change: Intervention) -> None:
    assert Intervention.parse(str(change)) == change


def test_every_form_of_a_list_is_understood() -> None:
    expected = (Intervention(MemoryId(1, 2), "scale", 3.0, "last"),)
    for given_ in ({"L1.M2": 3.0}, {MemoryId(1, 2): 3}, {"L1.M2": expected[0]}, ["L1.M2*3@last"], expected):
        assert interventions_of(given_, how="scale", at="last") == expected  # type: ignore[arg-type]
    assert interventions_of(None) == ()
    wrong: list[tuple[Any, str]] = [
        ("L1.M2=0", "^'L1.M2=0' is one text"),
        ({"L1.M3": expected[0]}, r"^the change L1\.M2\*3@last is given for L1\.M3"),
        ({"what": 0.0}, "^'what' does not name a memory"),
        ({"L1.M2": True}, "give a finite number$"),
        ({"L1.M2": float("inf")}, "give a finite number$"),
    ]
    for given_, said in wrong:
        with pytest.raises(InterventionError, match=said):
            interventions_of(given_)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("L2.M0=0", "L2.M0 is outside the model, which has layers 0 to 1"),
        ("L1.M24=0", "L1.M24 is outside the model: its layer 1 has memories 0 to 23"),
        ("L0.E1.M2=0", r"^L0\.E1\.M2 names an expert"),
        ("L0.M1=0@63", "begins at position 63, but the model reads 63 tokens"),
        ("L0.M1=1e300", "is beyond what torch.float32 can hold"),
    ],
)
def test_changes_outside_the_model_are_refused_before_anything_is_done(change: str, line: str) -> None:
    model, _ = tiny("gpt2")
    with pytest.raises(InterventionError, match=line), intervene(model, ["L0.M0=1", change]):
        raise AssertionError("the block must not begin")
    assert hooks(model) == 0
    with intervene(model, ["L1.M23=0", "L0.M1=0@62", "L0.M1=3e38", "L0.M2=-3e38@62"]) as changes:
        assert len(changes) == 4


def coefficients_of(model: LanguageModel) -> list[Tensor]:
    found: list[Tensor] = []
    with read_coefficients(model, lambda _, one: found.append(one.clone())):
        model.logits(IDS)
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_setting_a_memory_to_its_own_coefficient_changes_nothing(name: str) -> None:
    model, _ = tiny(name)
    before, own = model.logits(IDS), coefficients_of(model)
    changes = [
        Intervention(MemoryId(layer, memory), "set", float(own[layer][0, column + 1, memory]), column)
        for layer in (0, 1)
        for memory in range(own[layer].shape[2])
        for column in range(len(WORDS))
    ]
    with intervene(model, changes):
        assert model.logits(IDS).equal(before)
    with intervene(model, {str(change.memory): 1.0 for change in changes}, how="scale"):
        assert model.logits(IDS).equal(before)


@pytest.mark.parametrize("name", FAMILIES)
def test_zeroing_all_memories_of_a_layer_is_ablation(name: str) -> None:
    model, slow = tiny(name)
    for layer in (0, 1):
        everyone = {f"L{layer}.M{memory}": 0.0 for memory in range(model.sizes.memories[layer])}
        with intervene(model, everyone):
            found = model.logits(IDS)[0, -1].double()
        expected = ablated(slow, WORDS, layer)
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
        assert not torch.allclose(found, model.logits(IDS)[0, -1].double(), rtol=1e-3)


def test_positions_are_the_prompts_own_and_the_beginning_is_never_changed() -> None:
    model, _ = tiny("gpt2")
    own = coefficients_of(model)[0]
    for at, columns in (("all", [1, 2, 3, 4, 5]), ("last", [5]), (0, [1, 2, 3, 4, 5]), (3, [4, 5]), (9, [])):
        with intervene(model, {"L0.M7": 5.0}, at=at):  # type: ignore[arg-type]
            changed = coefficients_of(model)[0]
        expected = own.clone()
        expected[0, columns, 7] = 5.0
        assert changed.equal(expected), at
    with intervene(model, {"L0.M7": 5.0}, at="last"):
        assert trace(model, "the").places  # one token: its own position is the last
        beginning = model.logits(IDS[:, :1])
    assert beginning.equal(model.logits(IDS[:, :1]))


def test_blocks_add_up_in_order() -> None:
    model, _ = tiny("gpt2")

    def found() -> float:
        return float(coefficients_of(model)[0][0, 3, 7])

    with intervene(model, {"L0.M7": 2.0}):
        with intervene(model, {"L0.M7": 3.0}, how="scale"):
            assert found() == 6.0
            with intervene(model, ["L0.M7=1", "L0.M7*5"]):
                assert found() == 5.0
            assert found() == 6.0
        assert found() == 2.0
    with intervene(model, ["L0.M7*5", "L0.M7=1"]):
        assert found() == 1.0


class Stop(Exception):
    """What a user's block may raise."""


def test_nothing_is_left_after_the_block_also_after_exceptions() -> None:
    model, _ = tiny("llama")
    before = model.logits(IDS)

    def interrupted() -> None:
        with intervene(model, {"L0.M3": 4.0}), intervene(model, {"L1.M3": 4.0}):
            assert not model.logits(IDS).equal(before)
            raise Stop

    with pytest.raises(Stop):
        interrupted()
    with pytest.raises(IndexError), intervene(model, {"L0.M3": 4.0}):
        model.logits(IDS + 1000)  # the model itself fails
    with pytest.raises(InterventionError):
        trace(model, "the cat", interventions=["L0.M3=3e38", "L0.M4=3e38", "L1.M4=3e38"])
    assert model.logits(IDS).equal(before)
    assert hooks(model) == 0


def test_other_threads_run_the_model_as_it_is() -> None:
    model, _ = tiny("gpt2")
    before = model.logits(IDS)
    inside, finished = threading.Event(), threading.Event()
    seen: dict[str, Any] = {}

    def changed() -> None:
        with intervene(model, {"L0.M3": 4.0}):
            seen["changed"] = model.logits(IDS)
            inside.set()
            finished.wait(60)

    thread = threading.Thread(target=changed)
    thread.start()
    assert inside.wait(60)
    during = model.logits(IDS)
    finished.set()
    thread.join()
    assert during.equal(before)
    assert not seen["changed"].equal(before)
    assert model.logits(IDS).equal(before)


def test_other_coroutines_of_the_thread_run_the_model_as_it_is() -> None:
    model, _ = tiny("gpt2")
    before = model.logits(IDS)
    with intervene(model, {"L0.M3": 4.0}):
        changed = model.logits(IDS)
    with intervene(model, {"L1.M5": -4.0}):
        otherwise = model.logits(IDS)

    async def ask() -> Tensor:
        await asyncio.sleep(0)
        return model.logits(IDS)

    async def run() -> None:
        inside, finished = asyncio.Event(), asyncio.Event()

        async def change() -> list[Tensor]:
            seen = []
            with intervene(model, {"L0.M3": 4.0}):
                inside.set()
                await finished.wait()
                seen.append(model.logits(IDS))
                seen += await asyncio.gather(ask(), ask())  # begun inside, and so part of it
            return [*seen, model.logits(IDS)]

        task = asyncio.create_task(change())
        await inside.wait()
        assert model.logits(IDS).equal(before)
        with intervene(model, {"L1.M5": -4.0}):
            assert (await ask()).equal(otherwise)
        assert trace(model, "the cat").to_dict() == alone
        finished.set()
        found = await task
        assert [one.equal(changed) for one in found] == [True, True, True, False]
        assert found[-1].equal(before)

    alone = trace(model, "the cat").to_dict()
    asyncio.run(run())
    assert hooks(model) == 0


def test_a_block_may_be_left_in_another_context_than_the_one_that_entered_it() -> None:
    model, _ = tiny("gpt2")
    before = model.logits(IDS)
    block = intervene(model, {"L0.M3": 4.0})
    elsewhere = contextvars.copy_context()
    block.__enter__()
    assert not model.logits(IDS).equal(before)
    assert elsewhere.run(model.logits, IDS).equal(before)
    elsewhere.run(block.__exit__, None, None, None)
    assert model.logits(IDS).equal(before)
    assert hooks(model) == 0


def test_traces_from_many_threads_do_not_mix() -> None:
    model, _ = tiny("opt")
    prompts = {"the cat": None, "the dog ran home": ["L0.M3=4"], "a": ["L1.M5=-2@last"], "the cat sat on": None}
    alone = {prompt: trace(model, prompt, interventions=changes).to_dict() for prompt, changes in prompts.items()}
    found: list[tuple[str, dict[str, Any]]] = []

    def work(prompt: str) -> None:
        for _ in range(3):
            found.append((prompt, trace(model, prompt, interventions=prompts[prompt]).to_dict()))

    threads = [threading.Thread(target=work, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 12
    assert all(one == alone[prompt] for prompt, one in found)


@pytest.mark.full
def test_the_python_it_exports() -> None:
    plain = "import mnemoscope as ms\n\nmodel = ms.load_model('gpt2')\n"
    plain += "prompt = \"the 'cat'\"\nprint(ms.trace(model, prompt))\n"
    assert as_python("gpt2", "the 'cat'", None) == plain
    assert as_python("gpt2", "the 'cat'", {"L0.M0": 0.0, "L1.M4": 2.5}) == plain + (
        "\nchanges = [\n    'L0.M0=0',\n    'L1.M4=2.5',\n]\n"
        "with ms.intervene(model, changes):\n    print(ms.trace(model, prompt))\n"
    )
    opened = as_python("x", "the", None, opening=ModelOptions(adapter="a b", dequantize=True, dictionary=Path("d")))
    assert "ms.load_model('x', adapter='a b', dequantize=True, dict='d')" in opened
    script = as_python("handmade:planted", "the cat 'sat' on \"the\"\n mat", ["L0.M0=0", "L1.M4*2@last"])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.count("handmade:planted: 6 tokens, 3 layers") == 2
