"""The text on which lenses are fitted: stored mined sentences in a fixed order, and their streams. Lenses are judged on
held-out sentences, as all readouts are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from mnemoscope.errors import AtlasUnfinished
from mnemoscope.foundation.budget import BUDGET
from mnemoscope.mining.passes.prefix_pass import run_blocks
from mnemoscope.mining.text.batches import pack, pad
from mnemoscope.models import LanguageModel
from mnemoscope.models.forward.hooks import Block

_JUDGED = 10
"""One document of so many is not fitted but chooses the penalty."""


@dataclass(frozen=True)
class LensBatch:
    """Sentences of one forward, and whether they choose the penalty."""

    rows: list[NDArray[np.int64]]
    judged: bool


class LensText:
    """The batches of an atlas's text, at most `most` tokens or one sentence, chosen by the seed. No batch has sentences
    on both sides of a boundary. Raises AtlasUnfinished if the stored mined sentences are of fewer than two documents.
    """

    def __init__(self, directory: Path, *, area: int, seed: int, most: int, boundaries: Sequence[int] = ()) -> None:
        paths = sorted((directory / "sentences").glob("part-*.parquet"))
        table = pl.read_parquet(paths, columns=["document", "tokens", "held_out"], glob=False)
        table = table.filter(~pl.col("held_out"), pl.col("tokens").list.len() > 1)
        if table.is_empty():
            raise AtlasUnfinished(
                f"{directory} stores no mined sentence of two tokens that a lens could be fitted on; mine more text"
            )
        order = np.random.default_rng((seed, 10)).permutation(table.height)
        lengths = table["tokens"].list.len().to_numpy().astype(np.int64)
        within = int(np.searchsorted(np.cumsum(lengths[order]), most, side="right"))
        kept = np.sort(order[: max(1, within)])
        documents, sizes = table["document"].to_numpy()[kept], lengths[kept]
        tokens = table["tokens"].gather(kept)
        self.tokens = int(sizes.sum())
        # The rule must not depend on which documents are stored, and neighbours in number are neighbours in the text.
        lot = documents * 2654435761 % 2**32
        judged = lot % _JUDGED == 0
        if judged.all() or not judged.any():  # one of the few documents there are chooses, the others are fitted
            judged = lot == lot.min()
        if judged.all():
            raise AtlasUnfinished(
                f"the mined sentences of {directory} for fitting a lens come from one document, which cannot also "
                "judge it, so nothing is stored; mine more documents, or raise --max-tokens"
            )
        by_length = np.lexsort((sizes, judged))
        apart = judged * (1 + len(boundaries)) + np.searchsorted(boundaries, sizes)
        cuts = pack(sizes[by_length] + 1, area=area, rows=BUDGET.lens_sentences, apart=apart[by_length])
        batches = []
        for cut in cuts:
            places = by_length[cut]
            rows = [tokens[int(place)].to_numpy().astype(np.int64) for place in places]
            batches.append(LensBatch(rows, bool(judged[places[0]])))
        self.batches = [batches[place] for place in np.random.default_rng((seed, 11)).permutation(len(batches))]

    def facts(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "batches": len(self.batches)}


def read_streams(
    model: LanguageModel, rows: list[NDArray[np.int64]], layers: tuple[int, ...]
) -> tuple[dict[int, Tensor], Tensor]:
    """The stream that enters every layer, and the final one, `[position, hidden]` each, at the rows' own tokens."""
    ids = pad(rows, model)
    inside = torch.from_numpy(model.reading.inside(np.array([len(row) for row in rows]), ids.shape[1]))
    kept: dict[int, Tensor] = {}

    def keep(layer: int, block: Block) -> None:
        kept[layer] = block.residual[inside.to(block.residual.device)]

    with torch.inference_mode():
        final = run_blocks(model, ids, keep, layers)
        return kept, final[inside.to(final.device)]
