"""What a model that also takes pictures or sound holds beside its language model: the towers that read those.

A tower is a model of its own inside the model, with a configuration of another class. Text never runs it, so it is
neither loaded nor hashed nor checked. What joins it to the stream (a projection) is small and stays.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from mnemoscope.models.modules.wrappers import unwrap

_TAKE_MORE = (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    | MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES
    | MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
)


class _Absent(nn.Module):
    """Stands in the place of a tower: some models ask theirs where it lies, for texts too (Qwen2-Audio)."""

    place: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("place", torch.zeros(1), persistent=False)

    @property
    def device(self) -> torch.device:
        return self.place.device


def takes_more(config: Any) -> bool:
    """Whether a configuration's model type is one that may take pictures or sound, too."""
    return getattr(config, "model_type", None) in _TAKE_MORE


def towers_of(model: nn.Module) -> list[str]:
    """The paths of the towers of a transformers model."""
    config: Any = getattr(model, "config", None)
    if not takes_more(config):
        return []
    own, paths = {type(config), type(config.get_text_config(decoder=True))}, list[str]()
    words: Any = model.get_input_embeddings()  # type: ignore[operator]
    for path, module in model.named_modules():
        inside = unwrap(module)
        other = path and isinstance(inside, PreTrainedModel) and type(inside.config) not in own
        if other and not f"{path}.".startswith(tuple(f"{tower}." for tower in paths)):
            paths += [] if words in inside.modules() else [path]
    return paths


def outside_towers(model: nn.Module, names: Iterable[str]) -> list[str]:
    """The names of weights that are of no tower that was left out; in a file its path may begin otherwise."""
    absent = [f".{path.rpartition('.')[2]}." for path, module in model.named_modules() if type(module) is _Absent]
    return [name for name in names if not any(tower in f".{name}" for tower in absent)]


def without_towers(empty: PreTrainedModel) -> Any:
    """The class of an empty model, but without its towers; None, if it has none."""
    paths = towers_of(empty)
    return class_without(type(empty), paths) if paths else None


def class_without(kind: Any, paths: list[str]) -> Any:
    """A model's class without the modules of these paths; it makes empty models of a configuration, as those of
    transformers' auto classes do.
    """

    def make(model: Any, config: Any, *inputs: Any, **named: Any) -> None:
        kind.__init__(model, config, *inputs, **named)
        for path in paths:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, _Absent())
        tied, inside = model.all_tied_weights_keys, tuple(f"{path}." for path in paths)
        model.all_tied_weights_keys = {to: of for to, of in tied.items() if not to.startswith(inside)}

    def from_config(
        made: Any, config: Any, *, dtype: torch.dtype | None = None, trust_remote_code: bool = False
    ) -> Any:
        return made(config).to(dtype)

    # Under the same name: transformers and the fingerprint go by it.
    same = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(kind.__name__, (kind,), {**same, "__init__": make, "from_config": classmethod(from_config)})
