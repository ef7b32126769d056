"""Changes coefficients while a model runs: sets, scales or zeroes memories at all positions, the last, or from one on.

The changes are removed when the block ends, also after an exception, and act only in the thread that entered the block,
there not in other coroutines.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mnemoscope.errors import InterventionError, OptionError
from mnemoscope.foundation.memory_changes import At, How, Intervention, Interventions, counted_from, interventions_of
from mnemoscope.foundation.options.chat_prompt import MaskedPrompt, first_position
from mnemoscope.foundation.options.model_options import AS_USUAL, ModelOptions
from mnemoscope.models import LanguageModel, overwrite_coefficients
from mnemoscope.models.object_state import hold_model


def check(model: LanguageModel, changes: Sequence[Intervention]) -> None:
    sizes = model.sizes
    for change in changes:
        memory = change.memory
        if memory.expert_text and not model.numberings:
            raise InterventionError(f"{memory} names an expert, but {model.spec} has none; write L{memory.layer}.M...")
        if memory.layer >= sizes.layers:
            raise InterventionError(
                f"{memory} is outside the model, which has layers 0 to {sizes.layers - 1}; name one of them"
            )
        numbering = model.numbering(memory.layer)
        if numbering.number(memory) is None:
            has = f"memories 0 to {numbering.count - 1}" if numbering.routed is None else numbering.range_text()
            raise InterventionError(
                f"{memory} is outside the model: its layer {memory.layer} has {has}; name one of them"
            )
        if isinstance(change.at, int) and change.at >= model.longest:
            raise InterventionError(
                f"{change} begins at position {change.at}, but the model reads {model.longest} tokens; begin earlier"
            )
        if abs(change.value) > torch.finfo(model.dtype).max:
            raise InterventionError(f"{change} is beyond what {model.dtype} can hold; choose a smaller number")


@contextmanager
def intervene(
    model: LanguageModel, interventions: Interventions, *, at: At = "all", how: How = "set"
) -> Iterator[tuple[Intervention, ...]]:
    """Changes the coefficients of memories inside the block; yields the changes made.

        with ms.intervene(model, {"L10.M222": 0.0}):
            trace = ms.trace(model, "The capital of France is")

    A name may be of many memories: `L3`, `L5.M0-19`, or `@FILE`, a list of this model that was saved. Positions count
    the tokens after the beginning token, whose own position is never changed; the model must run on whole sequences
    that begin with it, as all functions here do. Changes apply in order, and nested blocks compose: the inner one sees
    the result of the outer one. Only the thread that entered the block is changed, and of its coroutines the one that
    did and those begun inside; others may run the model unchanged. Raises InterventionError before anything is changed.

    Args:
        model: A LanguageModel.
        interventions: Changes of memories: {"L10.M222": 0.0} or ["L10.M222=0@last"].
        at: The positions: all, last (of each run, so in generation the current last; of a masked model the mask), or
            from a number on.
        how: What a number does to the coefficient: set replaces it, scale multiplies it.
    """
    if isinstance(model, str | os.PathLike):
        raise OptionError(f"model={model!r} is a name, and what it opens would be lost; give load_model({model!r})")
    with hold_model(model, steadily=False):
        changes = interventions_of(interventions, of=model, how=how, at=at)
        check(model, changes)
        by_layer: dict[int, list[tuple[int, Intervention]]] = {}
        for change in changes:
            number = model.numbering(change.memory.layer).number(change.memory)
            assert number is not None
            by_layer.setdefault(change.memory.layer, []).append((number, change))
        overwriting = {layer: partial(_overwrite, model, numbered) for layer, numbered in by_layer.items()}
        with overwrite_coefficients(model, overwriting, own_thread=True):
            yield changes


def _overwrite(model: LanguageModel, changes: list[tuple[int, Intervention]], coefficients: Tensor) -> Tensor:
    out, first = coefficients.clone(), model.reading.offset - model.begun
    end = out.shape[1] - len(model.reading.after)  # never the frame
    for number, change in changes:
        begin = first + change.at if isinstance(change.at, int) else first
        place: tuple[Any, ...] = slice(None), slice(max(0, begin), end), number
        if change.at == "last":
            columns = torch.tensor(model.asked_columns)
            place = (rows := (columns >= first).nonzero()[:, 0]), columns[rows], number
        out[place] = change.value if change.how == "set" else out[place] * change.value
    return out


def as_python(
    model: str,
    prompt: str,
    interventions: Interventions,
    *,
    source: str | None = None,
    opening: ModelOptions = AS_USUAL,
) -> str:
    """A Python script that traces the prompt with these changes, and without them if there are any."""
    changes = counted_from(interventions_of(interventions), first_position(prompt))  # `intervene` knows no chat
    masked = f", mask={prompt.position}" if isinstance(prompt, MaskedPrompt) else ""
    lines = ["import mnemoscope as ms", "", opening.python_line(model), f"prompt = {prompt!r}"]
    given = "" if source is None else f", source={source!r}"
    show = f"print(ms.trace(model, prompt{masked}{given}))"
    lines.append(show)
    if changes:
        lines += ["", "changes = [", *(f"    {str(change)!r}," for change in changes), "]"]
        lines += ["with ms.intervene(model, changes):", f"    {show}"]
    return "\n".join(lines) + "\n"
