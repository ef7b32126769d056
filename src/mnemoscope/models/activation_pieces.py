"""Activations that are several short operations, made piece by piece while the processor's cache holds a piece.

transformers writes some activations out: `gelu_new`, that of GPT-2, GPT-J, GPT-Neo and Phi, is eight operations, each
of which reads and writes a whole batch of coefficients. Each number is made by the same operations here, and so is the
same to its last bit; LOG.md has what it saves.
"""

import torch
from torch import Tensor, nn
from transformers import activations

from mnemoscope.models.offloading import take_kinds

PIECE = 1 << 17
"""Numbers of a piece: half a megabyte in single precision, of which the operations hold three at a time."""
_WHOLE_STEPS = 64
"""What the width must be a multiple of, so that no piece ends between the numbers that a processor takes together."""


def use_pieces(network: nn.Module) -> None:
    """Lets those activations of a network on a CPU work piece by piece, where no gradient is asked for."""
    take_kinds(network, _KINDS)


class _InPieces(nn.Module):
    """Before an activation's class: calls it for some rows at a time."""

    def forward(self, input: Tensor) -> Tensor:
        width = input.shape[-1] if input.dim() else 1
        if (
            input.numel() <= PIECE
            or width % _WHOLE_STEPS
            or input.device.type != "cpu"
            or not input.is_contiguous()
            or torch.is_grad_enabled()
        ):
            return super().forward(input)  # type: ignore[no-any-return]
        rows = input.view(-1, width)
        made = torch.empty_like(rows)
        step = max(1, PIECE // width)
        for start in range(0, len(rows), step):
            made[start : start + step] = super().forward(rows[start : start + step])
        return made.view(input.shape)


# They keep their names, by which the activations of some models are told.
class NewGELUActivation(_InPieces, activations.NewGELUActivation):
    """See `use_pieces`."""


class FastGELUActivation(_InPieces, activations.FastGELUActivation):
    """See `use_pieces`."""


class AccurateGELUActivation(_InPieces, activations.AccurateGELUActivation):
    """See `use_pieces`."""


class QuickGELUActivation(_InPieces, activations.QuickGELUActivation):
    """See `use_pieces`."""


_KINDS: dict[type, type[nn.Module]] = {
    activations.NewGELUActivation: NewGELUActivation,
    activations.FastGELUActivation: FastGELUActivation,
    activations.AccurateGELUActivation: AccurateGELUActivation,
    activations.QuickGELUActivation: QuickGELUActivation,
}
