"""Runs that go on from a kept beginning have the coefficients of whole runs; other models are refused."""

import torch
from torch import Tensor

from mnemoscope.models import LanguageModel, load_model
from mnemoscope.models.hooks import read_coefficients
from mnemoscope.models.shared_prefix import Beginning, SharedPrefix
from models.conftest import LAYERS, build

IDS = torch.tensor([[5, 1, 8, 3, 11, 2, 9, 40, 17, 5], [7, 4, 0, 9, 6, 10, 33, 2, 8, 1]])
REFUSED = {"gpt_neo", "bloom", "bloom-normed-stream", "falcon-rw"}
"""They make their own masks, of a window or of distances."""


def coefficients(model: LanguageModel, run: object) -> dict[int, Tensor]:
    """What one run gives, by layer."""
    found: dict[int, Tensor] = {}
    with read_coefficients(model, lambda layer, here: found.update({layer: here.clone()})), torch.inference_mode():
        run()  # type: ignore[operator]
    return found


def assert_goes_on(model: LanguageModel, shared: SharedPrefix) -> None:
    """Rows that lost a token at places of their own, one of them from another row's run, in any order."""
    last = LAYERS - 1
    with torch.inference_mode():
        kept = shared.keep(IDS, stop_after=last)
    rows = [(0, 3), (1, 8), (0, 1), (1, 5)]
    rest = torch.zeros(len(rows), 8, dtype=torch.long)
    lengths = [10 - gap - 1 for _, gap in rows]
    for number, (row, gap) in enumerate(rows):
        rest[number, : lengths[number]] = IDS[row, gap + 1 :]
    beginnings = [Beginning(kept, row, gap) for row, gap in rows]
    found = coefficients(model, lambda: shared.go_on(beginnings, rest, lengths=lengths, stop_after=last))
    assert sorted(found) == list(range(LAYERS))
    for number, (row, gap) in enumerate(rows):
        short = torch.cat([IDS[row, :gap], IDS[row, gap + 1 :]])[None]
        whole = coefficients(model, lambda: model.backbone(short, stop_after=last))  # noqa: B023
        for layer, expected in whole.items():
            torch.testing.assert_close(found[layer][number, : lengths[number]], expected[0, gap:], rtol=1e-4, atol=1e-4)


def test_every_family_goes_on_or_is_refused(family: str, tokenizer: object) -> None:
    model = load_model(build(family), tokenizer=tokenizer)
    shared = SharedPrefix.of(model, longest=20)
    assert (shared is None) == (family in REFUSED)
    if shared is not None:
        assert_goes_on(model, shared)
        assert shared.bytes_per_position > 0


def test_a_window_that_is_shorter_than_the_longest_sentence_is_noticed(tokenizer: object) -> None:
    model = load_model(build("mistral", sliding_window=12), tokenizer=tokenizer)
    assert SharedPrefix.of(model, longest=10) is not None
    assert SharedPrefix.of(model, longest=40) is None


def test_padding_may_end_behind_the_context(tokenizer: object) -> None:
    """Two rows that both end with the context: the padding of one would have positions that the model has not."""
    model = load_model(build("gpt2"), tokenizer=tokenizer)
    length = model.sizes.context
    shared = SharedPrefix.of(model, longest=length - 1)
    assert shared is not None
    with torch.inference_mode():
        kept = shared.keep(torch.ones(1, length, dtype=torch.long), stop_after=0)
        beginnings = [Beginning(kept, 0, 1), Beginning(kept, 0, length - 1)]
        ids = torch.ones(2, length - 1, dtype=torch.long)
        shared.go_on(beginnings, ids, lengths=[length - 1, 1], stop_after=0)


def test_half_precision_is_run_whole(tokenizer: object) -> None:
    assert SharedPrefix.of(load_model(build("gpt2"), tokenizer=tokenizer, dtype="bfloat16"), longest=20) is None
