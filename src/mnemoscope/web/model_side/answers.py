"""What pages ask of the model, each as plain data: traces, heat maps, before and after, continuations, causal checks.

Every answer is worked out by `ModelSide.answer` under a key that names all it depends on, the changes included. What
the numbers are is for tracing to say; only the heat map's are read off here, from the same run.
"""

from typing import Any

import torch

from mnemoscope.atlas import Atlas
from mnemoscope.errors import PromptError
from mnemoscope.memory import MemoryId
from mnemoscope.models import LanguageModel
from mnemoscope.pages.trace_address import TOKENS
from mnemoscope.tracing import Intervention, as_python, causal_check, compare, generate, intervene, rank_of, top, trace
from mnemoscope.tracing.contributions import SCORES
from mnemoscope.tracing.interventions import check
from mnemoscope.tracing.predictions import continuation, prompt_tokens
from mnemoscope.tracing.trace import run_blocks
from mnemoscope.web.model_side.turns import Late, ModelSide

Changes = tuple[str, ...]
TOP = 10
"""Tokens and memories shown of each place."""


def changes_of(side: ModelSide, written: Changes) -> Changes:
    """The changes as Mnemoscope writes them; raises InterventionError for one that the model does not have."""
    found = tuple(Intervention.parse(one) for one in written)
    check(side.model, found)
    return tuple(map(str, found))


def traced(side: ModelSide, prompt: str, changes: Changes) -> dict[str, Any]:
    """The trace as JSON, as `Trace.to_dict`."""

    def make(model: LanguageModel, late: Late) -> dict[str, Any]:
        _not_too_long(model, prompt)
        return trace(model, prompt, top=TOP, memories=TOP, interventions=changes).to_dict()

    return side.answer(("trace", prompt, changes), make, places=_places)


def compared(side: ModelSide, prompt: str, changes: Changes) -> dict[str, Any]:
    """Before and after as JSON, as `Comparison.to_dict`, without continuations."""

    def make(model: LanguageModel, late: Late) -> dict[str, Any]:
        _not_too_long(model, prompt)
        return compare(model, prompt, changes, top=TOP, memories=TOP).to_dict()

    return side.answer(("compare", prompt, changes), make, places=lambda both: 2 * _places(both["after"]))


def heat(side: ModelSide, prompt: str, changes: Changes, stream: str) -> dict[str, Any]:
    """Probability and rank of each position's final prediction in one stream, each `[layer][position]`."""

    def make(model: LanguageModel, late: Late) -> dict[str, Any]:
        tokens = _not_too_long(model, prompt)
        with model.lock, torch.inference_mode(), intervene(model, changes):
            blocks = run_blocks(model, tokens)
            step = max(1, SCORES // model.sizes.vocabulary)
            rows = torch.cat([blocks[-1].output, *(getattr(block, stream) for block in blocks)])
            ranks: list[int] = []
            shares: list[float] = []
            length = len(tokens)
            ends = [rows[start : min(start + step, length)] for start in range(0, length, step)]
            final = torch.cat([top(model.scores(end, projection="lens"), 1)[0][:, 0] for end in ends])
            wanted = final.repeat(len(blocks))
            for start in range(0, len(wanted), step):
                scores = model.scores(rows[length + start : length + start + step], projection="lens")
                own = wanted[start : start + step]
                ranks += rank_of(scores, own).tolist()
                highest = scores.amax(1, keepdim=True)
                terms = (scores - highest).exp()
                shares += (terms.gather(1, own[:, None])[:, 0] / terms.sum(1)).tolist()
        lines = range(0, len(ranks), length)
        return {
            "stream": stream,
            "probability": [shares[start : start + length] for start in lines],
            "rank": [ranks[start : start + length] for start in lines],
        }

    return side.answer(("heat", prompt, changes, stream), make)


def written(side: ModelSide, prompt: str, changes: Changes, tokens: int) -> dict[str, Any]:
    """A continuation of so many tokens at most: its text, its steps, and the same joined to the prompt.

    `joined` is None where the tokenizer would read prompt and text together as other tokens than those written.
    """

    def make(model: LanguageModel, late: Late) -> dict[str, Any]:
        own = _not_too_long(model, prompt)
        steps = []
        for step in generate(model, prompt, tokens=tokens, interventions=changes):
            steps.append(step)
            if late():
                raise TimeoutError
        ids = [step.token.id for step in steps]
        return {
            "text": continuation(model, tuple(steps)),
            "joined": _joined(side, prompt, own, ids),
            "steps": [step.to_dict() for step in steps],
        }

    return side.answer(("written", prompt, changes, tokens), make)


def following(side: ModelSide, prompt: str, ids: tuple[int, ...]) -> list[str | None]:
    """For each token the text that continues the prompt by it, None where that would be read as other tokens."""

    def make(model: LanguageModel, late: Late) -> list[str | None]:
        own = _not_too_long(model, prompt)
        return [_joined(side, prompt, own, [id]) for id in ids]

    return side.answer(("following", prompt, ids), make)


def checked(side: ModelSide, atlas: Atlas, hash: str, memory: MemoryId, sign: int) -> dict[str, Any]:
    """The causal check of a memory as JSON."""

    def make(model: LanguageModel, late: Late) -> dict[str, Any]:
        return causal_check(model, atlas, memory, sign=sign, force=bool(side.differs)).to_dict()

    return side.answer(("causal", hash, memory, sign), make)


def python(side: ModelSide, prompt: str, changes: Changes) -> str:
    """The trace as a Python script."""
    return as_python(side.spec, prompt, changes)


def _places(found: dict[str, Any]) -> int:
    return len(found["layers"]) * len(found["positions"])


def _not_too_long(model: LanguageModel, prompt: str) -> list[int]:
    """The prompt's tokens, if they are not more than pages take."""
    tokens = prompt_tokens(model, prompt)
    if len(tokens) > TOKENS:
        raise PromptError(f"the prompt has {len(tokens):,} tokens; the page takes at most {TOKENS}: shorten it")
    return tokens


def _joined(side: ModelSide, prompt: str, own: list[int], ids: list[int]) -> str | None:
    raw = b"".join(side.words.raw[id] for id in ids)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    # Word-level tokens carry the space that divides them.
    whole = side.model.encode([prompt + text])[0] if text else own
    return text if text and whole == [*own, *ids] and len(whole) <= side.model.longest else None
