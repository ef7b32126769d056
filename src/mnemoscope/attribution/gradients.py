"""Attributions: r = m dF/dm of every memory at every position, by one plain backward pass (definitions.md 9).

Nothing is frozen, detached or replaced: the gradient is taken at a zero added to the input of the down-projection, or
to what a layer's memories write, so all paths through later layers count. Frozen variants find other memories than
ablations do (docs/cause.md).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from mnemoscope.attribution.contrast import LogitDifference
from mnemoscope.errors import ModelUnsupported, OptionError
from mnemoscope.kernels.devices import is_out_of_memory
from mnemoscope.models import LanguageModel, overwrite_coefficients, read_final
from mnemoscope.models.modules.taps import Taps


def prompt_gradients(model: LanguageModel, ids: Tensor, difference: LogitDifference) -> list[tuple[Tensor, Tensor]]:
    """By layer the coefficients m and dF/dm `[column, memory]` of one prompt."""
    asked = model.reading.asked_column(ids[0].tolist())
    with _memory_told(ids):
        by_layer = coefficient_gradients(model, ids, lambda final: difference.of(final[:, asked]))
    return [(coefficients[0], gradient[0]) for coefficients, gradient in by_layer.values()]


def coefficient_gradients(
    model: LanguageModel, ids: Tensor, difference: Callable[[Tensor], Tensor], *, columns: Tensor | None = None
) -> dict[int, tuple[Tensor, Tensor]]:
    """By layer the coefficients m and dF/dm, each `[batch, position, memory]`, on the CPU, or `[batch, memory]` at one
    column of each row. `difference` gives F from the final stream `[batch, position, hidden]`; it is summed over rows,
    which are independent.
    """
    leaves: dict[int, list[tuple[Tensor, Tensor]]] = {layer: [] for layer in range(model.sizes.layers)}
    final: list[Tensor] = []

    def add_zero(layer: int, coefficients: Tensor) -> Tensor:
        if columns is None:
            zero = torch.zeros_like(coefficients, requires_grad=True)
            leaves[layer].append((coefficients.detach(), zero))
            return coefficients + zero
        asked = tuple(one.to(coefficients.device) for one in (torch.arange(len(columns)), columns))
        here = coefficients[asked].detach()
        zero = torch.zeros_like(here, requires_grad=True)
        leaves[layer].append((here, zero))
        return coefficients.index_put(asked, zero, accumulate=True)

    changes = {layer: partial(add_zero, layer) for layer in leaves}
    with _with_gradients(model):
        with overwrite_coefficients(model, changes, own_thread=True), read_final(model, final.append, own_thread=True):
            model.backbone(ids, gradients=True)
        flat = [zero for groups in leaves.values() for _, zero in groups]
        slopes = iter(torch.autograd.grad(difference(final[-1]).sum(), flat, allow_unused=True))
    by_layer: dict[int, tuple[Tensor, Tensor]] = {}
    with torch.inference_mode():
        for layer, groups in leaves.items():
            whole = torch.stack([coefficients.float().cpu() for coefficients, _ in groups]).sum(0)
            gradient = torch.zeros_like(whole)
            for coefficients, _ in groups:
                slope = next(slopes)
                if slope is not None:  # those of several groups are zero in the others' memories
                    here = slope.float().cpu()
                    gradient += here if len(groups) == 1 else here.where(coefficients.cpu() != 0, 0)
            by_layer[layer] = whole, gradient
    return by_layer


def written_gradients(
    model: LanguageModel, ids: Tensor, difference: LogitDifference, layers: Sequence[int]
) -> dict[int, Tensor]:
    """By layer dF/dm `[column, memory]` from what the memories' values would add, so also where no token is routed to
    their experts.
    """
    added: dict[tuple[int, int], Tensor] = {}
    final: list[Tensor] = []

    def add_zero(place: tuple[int, int], written: Tensor) -> Tensor:
        added[place] = torch.zeros_like(written, requires_grad=True)
        return written + added[place]

    with _memory_told(ids), _with_gradients(model):
        with Taps(own_thread=True) as taps, read_final(model, final.append, own_thread=True):
            for layer in layers:
                for branch in range(max(1, len(model.layer(layer).ffn.branches))):
                    tap_written(model, layer, branch, taps, partial(add_zero, (layer, branch)))
            model.backbone(ids, gradients=True)
        asked = final[-1][:, model.reading.asked_column(ids[0].tolist())]
        slopes = torch.autograd.grad(difference.of(asked).sum(), list(added.values()))
    gradients = {layer: torch.zeros(final[-1].shape[1], model.sizes.memories[layer]) for layer in layers}
    with torch.inference_mode():
        for (layer, branch), slope in zip(added, slopes, strict=True):
            here = model.branch_of(layer) == branch
            values = model.values(layer)[here].float().cpu()
            gradients[layer][:, here] = model.split_batch(slope)[0].float().cpu() @ values.T
    return gradients


@contextmanager
def _with_gradients(model: LanguageModel) -> Iterator[None]:
    """Records gradients."""
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    except RuntimeError as error:
        if "does not require grad" in str(error) or "nference tensor" in str(error) or "derivative" in str(error):
            raise ModelUnsupported(f"{model.spec} has no gradient through its blocks: {error}") from error
        raise


@contextmanager
def _memory_told(ids: Tensor) -> Iterator[None]:
    """Raises OptionError where memory runs out."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise OptionError(
            f"the backward pass over {ids.shape[1]:,} positions needs more memory than there is; shorten the prompt, or"
            " take --dtype bfloat16"
        ) from error


def tap_written(model: LanguageModel, layer: int, branch: int, taps: Taps, tap: Callable[[Tensor], Tensor]) -> None:
    """Calls `tap` with what the memories of a branch of the layer write together, which its result replaces."""
    ffn = model.layer(layer).ffn
    if ffn.branches:
        taps.enters(ffn.branches[branch].behind, tap)
    else:
        taps.leaves(ffn.exits[-1], tap)
