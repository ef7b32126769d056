"""The readings by the paper's formulas, in two threads at once: each has products of its own."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from mnemoscope.mining.passes.literal_readings import LiteralReader
from mnemoscope.mining.passes.stream_readings import Streams

VOCABULARY, HIDDEN = 7, 3


def test_threads_do_not_share_products() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, meeting = torch.randn(HIDDEN, VOCABULARY, generator=generator), Barrier(2, timeout=20)

    def products(rows: Tensor, out: Tensor) -> Tensor:
        torch.mm(rows, weight, out=out)
        meeting.wait()  # neither reads its products before the other has written
        return out

    model: Any = SimpleNamespace(
        scorer=lambda: SimpleNamespace(scores=products),
        sizes=SimpleNamespace(vocabulary=VOCABULARY),
        device=torch.device("cpu"),
        bare=lambda vectors: vectors,
    )
    reader = LiteralReader(model, {0: torch.tensor([1, 1, 2])})
    stacks = [torch.randn(4, 5, HIDDEN, generator=generator) for _ in range(2)]
    finals = torch.zeros(5, dtype=torch.long)
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(reader.read, {0: Streams(*stack)}, finals, finals) for stack in stacks]
        read = [one.result()[0] for one in asked]
    for found, (residual, _, output, ffn) in zip(read, stacks, strict=True):
        for name, stream in (("residual", residual), ("output", output), ("ffn", ffn)):
            assert found[f"literal_{name}_top"].tolist() == (stream @ weight).argmax(1).tolist(), name
        wanted = (residual @ weight).softmax(1)[:, 0]
        torch.testing.assert_close(found["literal_residual_final_probability"], wanted)
