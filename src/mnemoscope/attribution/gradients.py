"""Attributions: r = m dF/dm of every memory at every position, by one plain backward pass (definitions.md 9).

Nothing is frozen, detached or replaced: the gradient is taken at a zero added to the input of the down-projection, so
all paths through later layers count. Frozen variants find other memories than ablations do (docs/cause.md).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from mnemoscope.errors import ModelUnsupported
from mnemoscope.models import LanguageModel, overwrite_coefficients, read_final


def gradient_products(
    model: LanguageModel, ids: Tensor, difference: Callable[[Tensor], Tensor], *, columns: Tensor | None = None
) -> dict[int, tuple[Tensor, Tensor]]:
    """By layer the coefficients m and m dF/dm, each `[batch, position, memory]`, on the CPU, or `[batch, memory]` at
    one column of each row. `difference` gives F from the final stream `[batch, position, hidden]`; it is summed over
    rows, which are independent. Raises ModelUnsupported where the network has no gradient, and RuntimeError or
    MemoryError where memory runs out.
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

    changes = {layer: lambda coefficients, layer=layer: add_zero(layer, coefficients) for layer in leaves}
    try:
        with torch.inference_mode(False), torch.enable_grad():
            with (
                overwrite_coefficients(model, changes, own_thread=True),
                read_final(model, final.append, own_thread=True),
            ):
                model.backbone(ids, gradients=True)
            flat = [zero for own in leaves.values() for _, zero in own]
            found = iter(torch.autograd.grad(difference(final[-1]).sum(), flat, allow_unused=True))
    except RuntimeError as error:
        if "does not require grad" in str(error) or "nference tensor" in str(error) or "derivative" in str(error):
            raise ModelUnsupported(f"{model.spec} has no gradient through its blocks: {error}") from error
        raise
    products: dict[int, tuple[Tensor, Tensor]] = {}
    with torch.inference_mode():
        for layer, own in leaves.items():
            whole, product = torch.zeros(()), torch.zeros(())
            for coefficients, _ in own:
                gradient = next(found)
                here = coefficients.float().cpu()
                whole = whole + here
                product = product + (here * gradient.float().cpu() if gradient is not None else torch.zeros_like(here))
            products[layer] = whole, product
    return products
