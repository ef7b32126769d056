"""Finds the anatomy of a model of an unknown family, from what its modules do in one small forward.

The blocks are the only list of `num_hidden_layers` modules that runs; block_structure.py infers their parts; the parts
after them follow from which tensors are equal. A result holds for all blocks made alike, and is a guess, which the
load-time proof checks in every layer. Anything inconsistent raises ModelUnsupported in one line.
"""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from mnemoscope.errors import ModelUnsupported
from mnemoscope.models.anatomy.anatomy import Anatomy, activation_name, numbers_in, text_config
from mnemoscope.models.anatomy.block_structure import read_structure
from mnemoscope.models.anatomy.block_sums import Unclear
from mnemoscope.models.anatomy.key_structure import FUNCTIONS, find_maps
from mnemoscope.models.modules.observed import (
    ModuleCall,
    Observation,
    distance,
    factor_between,
    flat,
    ids_for,
    observe,
    run,
    same,
    takes_source,
)
from mnemoscope.models.modules.projections import HeadTransform

_BELOW_CAP = 0.9
LAYER_COUNTS = ("num_decoder_layers", "num_hidden_layers", "n_layer", "n_layers", "num_layers", "n_blocks", "depth")


@torch.inference_mode()
def infer(model: Any) -> Anatomy:
    """The anatomy of a model of an unknown family, in evaluation mode. If one block occurs in several places, it is
    that of a twin whose places have blocks of their own, with the same tensors.
    """
    model = _with_own_blocks(_unroll_groups(model))
    config = text_config(model)
    kind = str(getattr(config, "model_type", "") or type(model).__name__)
    try:
        # A bound for the token ids of a small forward.
        rows = next(iter(numbers_in(config, ("vocab_size",))), 0) or int(model.get_input_embeddings().weight.shape[0])
        seen = observe(model, rows)
        path, blocks = _blocks(model, seen, numbers_in(config, LAYER_COUNTS))
        structure = read_structure(model, seen, path, blocks)
        named, calls = model.get_output_embeddings(), seen.calls.values()
        shape = seen.logits.shape if named is None else None
        scoring = [call for call in calls if call.module is named or call.given.shape == shape]
        if not scoring:
            raise Unclear("no module of it computes scores over the vocabulary")
        head = scoring[-1]
        ending = _after_blocks(seen, f"{path}.{structure.last}", head)
        bias = _added_vector(model, seen.logits - head.given) if seen.logits.shape == head.given.shape else None
        factor, softcap = _scaling(head.given if bias is None else head.given + bias, seen.logits, config)
        backbone = _backbone(model, path, head.taken if ending.entered is None else ending.entered)
    except Unclear as reason:
        raise ModelUnsupported(f"family {kind!r} is unknown and {reason}") from None
    except (AttributeError, KeyError) as error:
        raise ModelUnsupported(f"family {kind!r} is unknown and its blocks are not alike ({error})") from None
    return Anatomy(
        "structural",
        model,
        backbone,
        structure.layers,
        ending.norm,
        ending.project,
        head.module,
        activation_name(config, structure.activation),
        ending.factor * factor,
        softcap,
        transform=ending.transform,
        head_bias=bias,
        without=structure.without,
        last=blocks[structure.last],
        first=blocks[structure.first],
    )


def _with_own_blocks(model: Any) -> Any:
    """The model, or, if a list in it holds a module several times, a twin with the same tensors where none does."""
    if not any(len(set(places)) < len(places) for places in _lists(model)):
        return model
    twin = _twin(model)
    for places in _lists(twin):
        for number, module in enumerate(places):
            if module in list(places)[:number]:
                places[number] = _twin(module)
    return twin


def _unroll_groups(model: Any) -> Any:
    """A model whose few groups of blocks run in turn, each several times in a row (ALBERT), as a twin with one group of
    one block for every run, with the same tensors: a layer is a call of a block (definitions.md 7.2).
    """
    owners = [
        path
        for path, module in model.named_modules()
        if isinstance(getattr(module, "albert_layer_groups", None), nn.ModuleList)
    ]
    if not owners:
        return model
    twin = _twin(model)
    for owner in map(twin.get_submodule, owners):
        config, groups = owner.config, list(owner.albert_layer_groups)
        turns = [int(turn / (config.num_hidden_layers / len(groups))) for turn in range(config.num_hidden_layers)]
        owner.albert_layer_groups = nn.ModuleList()
        for number in turns:
            for block in range(len(groups[number].albert_layers)):
                group = _twin(groups[number])
                group.albert_layers = group.albert_layers[block : block + 1]
                owner.albert_layer_groups.append(group)
        count = len(owner.albert_layer_groups)
        config.update({"num_hidden_layers": count, "num_hidden_groups": count, "inner_group_num": 1})
    return twin


def _lists(model: nn.Module) -> list[nn.ModuleList]:
    return [module for module in model.modules() if isinstance(module, nn.ModuleList)]


def _twin(module: Any) -> Any:
    tensors = (*module.parameters(), *module.buffers())
    return copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})


def _blocks(model: nn.Module, seen: Observation, stated: list[int]) -> tuple[str, list[nn.Module]]:
    """The path of the blocks, and the blocks: of the towers of a multimodal model, those that text runs. Of several
    stated numbers of blocks the one that is a list's length counts, as LongCat needs.
    """
    lengths = {len(module) for module in model.modules() if isinstance(module, nn.ModuleList | nn.Sequential)}
    count = next((count for count in stated if count in lengths), stated[0] if stated else None)
    ran, of = False, "" if count is None else f" of num_hidden_layers = {count} modules"
    for kind in (nn.ModuleList, nn.Sequential):
        towers = {
            path: list(module)
            for path, module in model.named_modules()
            if isinstance(module, kind)
            and len(module)
            and count in (None, len(module))
            and any(True for _ in module.parameters())
        }
        outer = {path for path in towers if not any(path.startswith(f"{other}.") for other in towers)}
        lists = [path for path in outer if any(f"{path}.{number}" in seen.calls for number in range(len(towers[path])))]
        if len(lists) == 1:
            return lists[0], towers[lists[0]]
        if lists:
            raise Unclear(f"its blocks cannot be identified: {len(lists)} lists{of}, where there must be one")
        ran = ran or bool(towers)
    if ran:
        raise Unclear("its blocks do not pass on one stream of hidden states")
    raise Unclear(f"its blocks cannot be identified: there is no list{of}")


class _Ending(NamedTuple):
    """What stands between the last block and the head: the final norm, the projection, the factor on their output, and
    a transform of what `entered` the projection.
    """

    norm: nn.Module | None = None
    project: nn.Module | None = None
    factor: float = 1.0
    transform: HeadTransform | None = None
    entered: Tensor | None = None


def _after_blocks(seen: Observation, last: str, head: ModuleCall) -> _Ending:
    stream, later = seen.calls[last].given, seen.after(seen.calls[last])
    leaves = [call for call in later if call is not head and not list(call.module.children())]

    def is_map(call: ModuleCall) -> bool:
        return getattr(call.module, "weight", torch.empty(0)).dim() == 2

    if same(stream, head.taken):
        return _Ending()
    readers = [call for call in leaves if same(call.taken, stream)]
    for one in readers:
        if same(one.given, head.taken):
            return _Ending(project=one.module) if is_map(one) else _Ending(one.module)
    for one in readers:
        for two in leaves:
            if same(two.taken, one.given) and same(two.given, head.taken) and is_map(two):
                return _Ending(one.module, two.module)
    for one in readers:
        scaled = None if is_map(one) else _factor(one.given, head.taken)
        if scaled is not None and getattr(head.module, "bias", None) is None:
            return _Ending(one.module, factor=scaled)
    starts = [(None, stream), *((one.module, one.given) for one in readers if not is_map(one))]
    for norm, entered in starts:
        for dense, transposed in find_maps([call for call in later if same(call.taken, entered)]).items():
            transform = None if transposed else _transform(leaves, dense.given, head.taken)
            if transform is not None:
                return _Ending(norm, dense.module, transform=transform, entered=entered)
    raise Unclear("what lies between its last block and its head is unclear")


def _transform(leaves: list[ModuleCall], projected: Tensor, taken: Tensor) -> HeadTransform | None:
    """The function and the norm that make what the head has `taken` of what its dense map gave."""

    def works_by_entry(call: ModuleCall) -> bool:
        try:
            return same(call.module(call.taken[:, :1]), call.given[:, :1])
        except RuntimeError:
            return False

    changing = [call for call in leaves if call.changes and call.taken.shape == call.given.shape == projected.shape]
    modules: list[Callable[[Tensor], Tensor]] = [
        call.module for call in changing if same(call.taken, projected) and works_by_entry(call)
    ]
    functions = [*modules, *(ACT2FN[name] for name in FUNCTIONS), None]
    norms = [(call.module, call.taken) for call in changing if same(call.given, taken) and not works_by_entry(call)]
    for norm, activated in (*norms, (None, taken)):
        tried = [HeadTransform(function, norm) for function in functions]
        best = min(tried, key=lambda each: distance(each.activate(projected), activated))
        if same(best.activate(projected), activated):
            return best
    return None


def _added_vector(model: nn.Module, missing: Tensor) -> Tensor | None:
    """The vector among the model's own that is added to the scores of all positions; None if nothing, or more, is."""
    if not bool(missing.any()) or not same(missing[:1].expand_as(missing), missing):
        return None
    tensors = (*model.parameters(), *model.buffers())
    vectors = (one.detach().flatten() for one in tensors if one.numel() == missing.shape[1])
    return next((one for one in vectors if same(one.expand_as(missing), missing)), None)


def _scaling(scores: Tensor, logits: Tensor, config: Any) -> tuple[float, float | None]:
    """The factor or soft-cap that turns the head's scores into logits."""
    if same(scores, logits):
        return 1.0, None
    stated = (value for name, value in config.to_dict().items() if "logit" in name and "cap" in name)
    for cap in stated:
        if isinstance(cap, float | int) and cap:
            # Entries near the cap, of which nothing is left to invert, have no say in the factor.
            inner = logits.abs() < _BELOW_CAP * cap
            within = torch.atanh(torch.where(inner, logits, 0.0) / cap) * cap
            for scale in (1.0, factor_between(torch.where(inner, scores, 0.0), within)):
                if same(torch.tanh(scores * scale / cap) * cap, logits):
                    return scale, float(cap)
    factor = _factor(scores, logits)
    if factor is not None:
        return factor, None
    raise Unclear("its logits are not its head's scores, scaled, capped, or both")


def _factor(one: Tensor, other: Tensor) -> float | None:
    if one.shape != other.shape:
        return None
    factor = factor_between(one, other)
    return factor if same(one * factor, other) else None


def _backbone(model: Any, path: str, stream: Tensor) -> nn.Module | None:
    """The module that runs the blocks without the head; None if only the whole model does."""
    parent = path.rpartition(".")[0]
    if not parent or takes_source(model):
        return None
    module: nn.Module = model.get_submodule(parent)
    try:
        given = run(module, ids_for(model, int(text_config(model).vocab_size)))
    except TypeError:
        return None
    return module if same(flat(given), stream) else None
