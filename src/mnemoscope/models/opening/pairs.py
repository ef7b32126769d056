"""How an encoder-decoder reads a source and a text: what the model's own code puts before a target's tokens, and what
its tokenizer puts around a source (definitions.md, 7.3).
"""

import copy
from typing import Any

import torch

from mnemoscope.errors import ModelUnsupported
from mnemoscope.foundation.reading import Reading
from mnemoscope.models.loaded_parts import first_line
from mnemoscope.models.modules.observed import takes
from mnemoscope.models.modules.offloading import device_of_module
from mnemoscope.models.modules.quiet import suppress_output, suppress_warnings
from mnemoscope.models.tokens.model_tokens import frame_of

_OWN = [5, 7, 6]
"""The target of a model without a tokenizer."""
_SWITCH = "_switch_to_target_mode"
"""A private name of transformers: its public call makes token ids with special tokens, and nothing else."""


def pair_reading(model: Any, tokenizer: Any) -> Reading:
    """Tokenises a target as labels, and asks the model's own code what its decoder then reads."""
    if not takes(model.get_encoder(), "input_ids"):
        raise ModelUnsupported(f"the encoder of {type(model).__name__} reads no text; its source cannot be given")
    own, labels = _OWN, _OWN
    if callable(tokenizer):
        made = tokenizer(text_target="a b c", return_special_tokens_mask=True)
        labels = [*made["input_ids"]]
        own = [token for token, added in zip(labels, made["special_tokens_mask"], strict=True) if not added]
    try:
        read = _decoder_ids(model, torch.tensor([labels], device=device_of_module(model)))[0].tolist()
    except (AttributeError, ValueError, AssertionError, TypeError) as error:
        raise ModelUnsupported(
            f"{type(model).__name__} does not say what its decoder reads before a target ({first_line(error)}); state"
            " decoder_start_token_id in its configuration"
        ) from None
    known = own[:-1] or own  # the last label of all is left out, which may be an own one
    start = next((at for at in range(1, len(read)) if known and read[at : at + len(known)] == known), None)
    if start is None:
        raise ModelUnsupported(f"{type(model).__name__} does not read its own labels, shifted, as a target")
    if {*read[:start]} & {*own}:
        raise ModelUnsupported(f"{type(model).__name__} begins a target with its last label; name its own tokenizer")
    return Reading(tuple(read[:start]), source=frame_of(tokenizer))


def _decoder_ids(model: Any, labels: torch.Tensor) -> torch.Tensor:
    """What the decoder reads of labels `[1, token]`, by the class's own function, else by a forward of the model."""
    prepare = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if prepare is not None:
        return torch.as_tensor(prepare(labels=labels))
    taken: list[Any] = []

    def note(_: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        taken.append(named["input_ids"] if "input_ids" in named else inputs[0])

    hook = model.get_decoder().register_forward_pre_hook(note, with_kwargs=True)
    with suppress_warnings(), torch.no_grad(), hook:
        model(input_ids=labels, labels=labels)
    return torch.as_tensor(taken[0])


def as_target(tokenizer: Any) -> Any:
    """The tokenizer as it reads a target: Marian's has a SentencePiece model, and perhaps a vocabulary, a side."""
    if getattr(tokenizer, "backend_tokenizer", None) is not None or getattr(tokenizer, _SWITCH, None) is None:
        return tokenizer
    with suppress_output():
        tokenizer = copy.deepcopy(tokenizer)
    getattr(tokenizer, _SWITCH)()
    if (own := getattr(tokenizer, "current_encoder", None)) is not None:
        tokenizer.get_vocab = lambda: tokenizer.added_tokens_encoder | own  # without it the source's
    return tokenizer
