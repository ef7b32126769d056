"""The names that other tools give a memory: TransformerLens' hook, nnsight's module, Neuronpedia's address; and hooks
that change memories in TransformerLens.

A memory's coefficient is an entry of the down-projection's input, which each of these tools reaches under its own name.
None of them is imported. For an atlas no model is loaded: the row of its family locates the down-projection.
"""

import os
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.atlas.manifest import MANIFEST
from mnemoscope.errors import MemoryIdError
from mnemoscope.foundation.memory_changes import Intervention
from mnemoscope.foundation.memory_names import MemoryId, NamedMemories

if TYPE_CHECKING:
    from torch import Tensor

    from mnemoscope.models import LanguageModel

NEURONPEDIA = {"gpt2": "gpt2-small"}
"""Neuronpedia's names of models, where they differ from the last part of the hub id in lower case."""
_HOOK = "blocks.{}.mlp.hook_post"


def names(memory: str | MemoryId, *, model: "str | os.PathLike[str] | LanguageModel | Atlas") -> dict[str, str | None]:
    """The names of one memory in other tools, for a model.

    * `transformer_lens`: the hook and index of `HookedTransformer` and `TransformerBridge`, whose cache holds the
      coefficient after any gate.
    * `nnsight`: the input of the module, as written inside `with model.trace(...)`.
    * `neuronpedia`: `MODEL/LAYER/INDEX`, the path of the neuron's page if it has one; its source there is its layer.
    * `module`: the down-projection's path inside the transformers model; its input's last axis holds the memory.

    None where there is no such name: a model of fairseq has no such module, an atlas does not record the module of an
    unknown family, and Neuronpedia covers hub models without adapters. Raises MemoryIdError for a memory that the model
    does not have, and the errors of `load_model`.

    Args:
        memory: The name of a memory, such as L10.M222.
        model: A hub id or folder, a loaded model, an atlas or its folder.
    """
    named = MemoryId.parse(memory) if isinstance(memory, str) else memory
    if isinstance(model, str | os.PathLike) and not isinstance(model, Atlas) and (Path(model) / MANIFEST).is_file():
        model = open_atlas(model)
    spec, hub, path, sizes = _look_up(model, named.layer)
    if named.expert is not None or named.layer >= len(sizes) or named.memory >= sizes[named.layer]:
        raise MemoryIdError(f"{named} is not in {spec}, which has {len(sizes)} layers of {max(sizes)} memories")
    last = hub.rpartition("/")[2].lower()
    index, written = named.memory, None if path is None else re.sub(r"\.([0-9]+)\b", r"[\1]", path)
    return {
        "transformer_lens": f"{_HOOK.format(named.layer)}[..., {index}]",
        "nnsight": None if written is None else f"model.{written}.input[..., {index}]",
        "neuronpedia": f"{NEURONPEDIA.get(last, last)}/{named.layer}/{index}" if hub else None,
        "module": path,
    }


def _look_up(
    model: "str | os.PathLike[str] | LanguageModel | Atlas", layer: int
) -> tuple[str, str, str | None, tuple[int, ...]]:
    """The model's spec, its hub id (empty without one, or with an adapter), the path of the layer's down-projection,
    and the number of memories of every layer."""
    from mnemoscope.models.anatomy.families import FAMILIES

    if isinstance(model, Atlas):
        mined = model.manifest.model
        rows = [row for row in FAMILIES if row.name == mined.family]
        path = f"{rows[0].blocks}.{layer}.{rows[0].down}" if rows else None
        hub = "" if model.manifest.plan.get("adapter") else mined.hub or ""
        return mined.spec, hub, path, tuple(mined.sizes.memories)
    from mnemoscope.models import load_model

    loaded = load_model(model) if isinstance(model, str | os.PathLike) else model
    layers = loaded.anatomy.layers
    down = layers[layer].ffn.exits[-1] if layer < len(layers) else None
    modules = () if loaded.spec.startswith("fairseq:") else loaded.anatomy.model.named_modules()
    hub = loaded.hub if loaded.hub and loaded.opening.adapter is None else ""
    return loaded.spec, hub, next((name for name, module in modules if module is down), None), loaded.sizes.memories


def hook(
    memories: str | MemoryId | Iterable[str | MemoryId], value: float = 0.0
) -> list[tuple[str, Callable[..., Any]]]:
    """Sets memories to a value in TransformerLens: for each layer the name of a hook and its function.

        logits = bridge.run_with_hooks(tokens, fwd_hooks=ms.hook("L10.M222"))

    They act at all positions, also at those of the frame, which `intervene` leaves as they are. Raises MemoryIdError
    for experts and, in the run, for a memory that the model does not have; InterventionError for what is no number.

    Args:
        memories: Names: L10.M222, a range L5.M0-19, a layer L3, a saved list @FILE; or several of them.
        value: What their coefficients are set to.
    """
    places = dict[int, list[slice]]()
    for one in [memories] if isinstance(memories, str | MemoryId) else memories:
        for layer, kind, expert, first, last in NamedMemories.parse(str(one)).parts:
            if kind is not None:
                raise MemoryIdError(f"L{layer}.{kind}{expert} is an expert, whose memories have no hook; use intervene")
            some = slice(None) if first is None else slice(int(first), int(last or first) + 1)
            places.setdefault(int(layer or 0), []).append(some)
    if not places:
        raise MemoryIdError("no memory is named; write one as L10.M222 (layer 10, memory 222)")
    changes = [Intervention(MemoryId(layer, 0), value=value) for layer in sorted(places)]
    return [(_HOOK.format(at := one.memory.layer), partial(_set, at, places[at], one.value)) for one in changes]


def _set(layer: int, places: list[slice], value: float, coefficients: "Tensor", hook: object = None) -> "Tensor":
    changed, count = coefficients.clone(), coefficients.shape[-1]
    for some in places:
        if some.stop is not None and some.stop > count:
            raise MemoryIdError(f"L{layer}.M{some.stop - 1} is not in this model, whose layer {layer} has {count}")
        changed[..., some] = value
    return changed
