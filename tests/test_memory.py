"""The name of a memory: what it may be, and how names sort."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnemoscope.errors import MemoryIdError
from mnemoscope.foundation.memory_names import MemoryId

IDS = st.builds(
    MemoryId,
    layer=st.integers(0, 999_999),
    memory=st.integers(0, 999_999_999),
    expert=st.none() | st.integers(0, 999_999),
)


@given(IDS)
def test_a_name_reads_back(memory: MemoryId) -> None:
    assert MemoryId.parse(str(memory)) == memory


def test_names_as_they_are_written() -> None:
    assert (str(MemoryId(10, 222)), str(MemoryId(10, 222, expert=3))) == ("L10.M222", "L10.E3.M222")
    assert MemoryId.parse(" L10.M222\n") == MemoryId(10, 222)


@pytest.mark.parametrize(
    "text",
    [
        *("", "L10", "M222", "10.222", "L10.M", "l10.m222", "L-1.M2", "L1.M2.E3", "L1.M2 L1.M3", "L1.M1000000000"),
        *("L\u0661.M\u0662", "L1.M\u00b2"),
        pytest.param("9" * 5_000, id="5,000 digits"),
    ],
)
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(MemoryIdError, match=r"write one as L10\.M222") as caught:
        MemoryId.parse(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_names_sort_by_layer_expert_memory() -> None:
    ordered = [MemoryId(0, 5), MemoryId(2, 1), MemoryId(2, 9), MemoryId(2, 0, expert=0), MemoryId(10, 0)]
    assert sorted([ordered[index] for index in (3, 0, 4, 2, 1)]) == ordered


def test_a_name_is_a_value() -> None:
    assert {MemoryId(1, 2): "x"}[MemoryId.parse("L1.M2")] == "x"
