"""What `coefficients` and `capture` of a model return as arrays. Holds numbers, and reads none."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats32 = NDArray[np.float32]


class TextArrays(dict[Any, Floats32]):
    """The arrays of some texts by layer, `found[3]`, or by stream and layer, `found["residual", 3]`; float32.

    `axes` names theirs: `text`, `position`, then `memory` or `hidden`; there is no `position` where one was asked for,
    or where they were reduced. Beyond the end of a text stands NaN. `tokens` are each text's, as text, of which the
    first has the position `firsts` (below 0 in a chat). `memories` are the numbers along the last axis, by layer;
    `made_by` says where all of it comes from.
    """

    def __init__(
        self,
        arrays: Mapping[Any, Floats32],
        *,
        axes: tuple[str, ...],
        tokens: tuple[tuple[str, ...], ...],
        firsts: tuple[int, ...],
        memories: Mapping[int, tuple[int, ...]],
        made_by: Mapping[str, Any],
    ) -> None:
        super().__init__(arrays)
        self.axes, self.tokens, self.firsts, self.memories, self.made_by = axes, tokens, firsts, memories, made_by

    def __repr__(self) -> str:
        shapes = ", ".join(f"{key!r}: {array.shape}" for key, array in list(self.items())[:3])
        return f"<TextArrays [{', '.join(self.axes)}] {shapes}{', ...' if len(self) > 3 else ''}>"
