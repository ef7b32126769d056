"""Which documents may be held out: the definition read aloud beside the fast search."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mnemoscope.training import text as training_text
from mnemoscope.training.text import independent_candidates


def held_out_slowly(streams: list[list[int]], candidates: list[bool], run: int) -> list[bool]:
    """The definition read aloud: as long as one held-out document shares a run with what is not, move it over."""
    held = list(candidates)

    def runs(stream: list[int]) -> set[tuple[int, ...]]:
        own = stream[1:]
        return {tuple(own[i : i + run]) for i in range(len(own) - run + 1)}

    while True:
        training = set().union(*(runs(s) for s, out in zip(streams, held, strict=True) if not out))
        moving = [i for i, s in enumerate(streams) if held[i] and runs(s) & training]
        if not moving:
            return held
        for i in moving:
            held[i] = False


@given(
    st.lists(st.tuples(st.lists(st.integers(1, 3), max_size=9), st.booleans()), min_size=1, max_size=12),
    st.integers(2, 4),
)
def test_held_out_documents_share_no_run_with_training_text(documents: list[tuple[list[int], bool]], run: int) -> None:
    streams = [[0, *tokens] for tokens, _ in documents]
    candidates = [out for _, out in documents]
    before, training_text.RUN = training_text.RUN, run
    try:
        found = independent_candidates([np.array(s, np.uint16) for s in streams], np.array(candidates))
    finally:
        training_text.RUN = before
    assert found.tolist() == held_out_slowly(streams, candidates, run)
