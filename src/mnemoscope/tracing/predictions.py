"""What a model predicts after a prompt: the best tokens of its streams, and the prompt continued token by token.

A prompt is read as mining reads a sentence: special strings are plain text (but for a chat's, chat_prompt.py), the
beginning token comes first and has no position; positions count the prompt's own tokens from 0 (definitions.md 3).
Every step of a continuation runs the whole text again, unless it may be cached, so that a change applies at exactly its
positions; no hook remains between steps, whatever the consumer of the steps does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from transformers import DynamicCache

from mnemoscope.errors import InterventionError, ModelUnsupported, NotFinite, OptionError
from mnemoscope.foundation.memory_changes import Interventions, counted_from, interventions_of
from mnemoscope.foundation.options.chat_prompt import Prompt, first_position
from mnemoscope.foundation.words import CONTINUES_NOTHING
from mnemoscope.models import LanguageModel, read_final
from mnemoscope.models.forward.batches import sides
from mnemoscope.models.modules.observed import same, takes
from mnemoscope.models.object_state import hold_model
from mnemoscope.tracing.interventions import check, intervene
from mnemoscope.tracing.records import Prediction, Record, Token
from mnemoscope.tracing.scoring.ranking import top
from mnemoscope.tracing.scoring.scores import opens, split_rows

_NEAR = 1e-3
"""How much likelier than the second the first token is, relatively, at least, if the kept numbers choose it."""
_FAILURES = (TypeError, ValueError, AttributeError, LookupError, RuntimeError)
"""What models raise that take a cache of another kind."""


@dataclass(frozen=True, slots=True)
class Step(Record):
    """One generated token: its position, its probability (at temperature 1), and the likeliest tokens, best first.

    `end`: it is an end-of-text token or the beginning token, or the context is full.
    """

    position: int
    token: Token
    probability: float
    likely: tuple[Prediction, ...]
    end: bool


def ids_of(model: LanguageModel, tokens: list[int]) -> Tensor:
    """The model's input: ids `[1, position]`, in the model's frame, with the source of an encoder-decoder."""
    return torch.tensor([model.reading.row(tokens)], device=model.device)


def read_predictions(
    scores: Tensor, count: int, texts: Sequence[str], *, changed: bool
) -> Iterator[tuple[Prediction, ...]]:
    """The `count` best tokens of each row of scores `[row, vocab]`, which it overwrites; InterventionError (if
    `changed`) or NotFinite.
    """
    with torch.inference_mode():
        tokens, best = top(scores, count)
        highest = best[:, :1]
        totals = scores.sub_(highest).exp_().sum(1, keepdim=True)  # NaN if any score is NaN, or if none is finite
    if not bool(totals.isfinite().all()):
        if changed:
            raise InterventionError("the changes make the model's numbers NaN or infinite; choose smaller ones")
        raise NotFinite(
            "the model gives NaN or infinite scores for this prompt; try --dtype float32, or check its weights"
        )
    shares = (best - highest).exp() / totals
    for ids, probabilities in zip(tokens.tolist(), shares.tolist(), strict=True):
        yield tuple(Prediction(Token(id, texts[id]), share) for id, share in zip(ids, probabilities, strict=True))


def best_predictions(
    model: LanguageModel, streams: Tensor, count: int, *, changed: bool
) -> Iterator[tuple[Prediction, ...]]:
    """As `read_predictions`, of `streams [row, hidden]` under the model's readout."""
    for rows in split_rows(model, streams):
        scores = model.scores(rows, projection="lens")
        yield from read_predictions(scores, count, model.vocabulary()[0], changed=changed)


@opens
def generate(
    model: LanguageModel,
    prompt: Prompt,
    *,
    tokens: int,
    interventions: Interventions = None,
    temperature: float = 0.0,
    seed: int = 0,
    likely: int = 5,
    cached: bool = False,
) -> Iterator[Step]:
    """At most `tokens` steps that continue the prompt, computed lazily.

    Temperature 0 takes the best token (of ties the lower id), above 0 draws by `seed`. Ends early with an end-of-text
    token, the beginning token, or a full context. An intervention at `last` changes only the last position of each
    step. `cached` keeps attention's keys and values between the steps where the model can: the same tokens, sooner; not
    inside other changes at `last`.
    """
    if tokens < 0 or temperature < 0 or likely < 1:
        raise OptionError(
            f"tokens={tokens}, temperature={temperature}, likely={likely} is not possible; "
            "tokens and temperature must be 0 or more, likely 1 or more"
        )
    check_continues(model)
    prompt = model.prompt_text(prompt)
    prompted, first = model.prompt_tokens(prompt), first_position(prompt)
    changes = counted_from(interventions_of(interventions, of=model), first)
    check(model, changes)

    def steps() -> Iterator[Step]:
        words, texts = list(prompted), model.vocabulary()[0]
        chance = torch.Generator().manual_seed(seed)
        greedy = temperature == 0 and not any(change.at == "last" for change in changes)
        run = CachedRun(model, keep=cached and greedy)
        for _ in range(min(tokens, model.longest - len(prompted))):
            with hold_model(model), model.lock, torch.inference_mode(), intervene(model, changes):
                stream, best = run.predict(words, likely, changed=bool(changes))
                token, probability = best[0].token.id, best[0].probability
                if temperature > 0:
                    scores = model.scores(stream, projection="lens")[0].double().cpu()
                    token = int(torch.multinomial((scores / temperature).softmax(0), 1, generator=chance))
                    probability = float(scores.softmax(0)[token])
            words.append(token)
            end = token in model.ends or len(words) == model.longest
            yield Step(len(words) - 1 + first, Token(token, texts[token]), probability, best, end)
            if end:
                return

    return steps()


def check_continues(model: LanguageModel) -> None:
    """Raises ModelUnsupported for a model that reads sentences whole."""
    if not model.reading.causal:
        raise ModelUnsupported(CONTINUES_NOTHING)


def last_streams(model: LanguageModel, ids: Tensor, *, past: Any = None, columns: slice | None = None) -> Tensor:
    """The final stream `[batch, hidden]` that speaks of what follows `ids [batch, position]`, or stands at the first
    row's mask, read after `past`; with `columns` those of all of them, `[batch * column, hidden]`.
    """
    streams: list[Tensor] = []
    if columns is None:
        asked = model.reading.asked_column(ids[0].tolist())
        columns = slice(asked, asked + 1)
    with read_final(model, lambda stream: streams.append(stream[:, columns].flatten(0, 1).clone())):
        model.backbone(ids, past=past)
    return streams[0]


@final
class CachedRun:
    """Runs a text that grows, and keeps the attention's keys and values of what was read, in the library's own cache.

    The first step is compared with a run of the whole text; a model whose numbers then differ, or that takes no such
    cache, runs the whole text each time. Hold the model and its lock around each call; what changes the model must be
    the same in all, at `all` positions or from one on.
    """

    def __init__(self, model: LanguageModel, *, keep: bool = True) -> None:
        backbone = model.anatomy.backbone
        self._model, self._past, self._proved = model, DynamicCache(), False
        self._works = keep and model.reading.causal and backbone is not None and takes(backbone, "past_key_values")
        self._works &= model.dtype == torch.float32

    def predict(self, tokens: list[int], count: int, *, changed: bool = False) -> tuple[Tensor, tuple[Prediction, ...]]:
        """The final stream `[1, hidden]` after the tokens, which begin with those of the call before, and the likeliest
        ones. Near ties are decided by a run of the whole text.
        """
        ids = ids_of(self._model, tokens)
        stream = self._last_stream(ids)
        best = next(best_predictions(self._model, stream, max(count, 2), changed=changed))
        if self._works and best[0].probability <= best[1].probability * (1 + _NEAR):
            stream = last_streams(self._model, ids)
            best = next(best_predictions(self._model, stream, count, changed=changed))
        return stream, best[:count]

    def _last_stream(self, ids: Tensor) -> Tensor:
        model, begun = self._model, self._past.get_seq_length()
        if begun and len(set(sides(model, [begun, ids.shape[1]]))) > 1:  # kept keys were turned by another rotary table
            self._past, begun = DynamicCache(), 0
        if self._works:
            try:
                stream = last_streams(model, ids[:, begun:], past=self._past)
                self._works = self._past.get_seq_length() == ids.shape[1]
            except _FAILURES:
                self._works = False
            if self._works and begun and not self._proved:
                self._works = self._proved = same(stream, last_streams(model, ids))
        return stream if self._works else last_streams(model, ids)


def continuation(model: LanguageModel, steps: tuple[Step, ...]) -> str:
    """The text of the steps' tokens; incomplete UTF-8 becomes a replacement mark."""
    raw = model.vocabulary()[1]
    return b"".join(raw[step.token.id] for step in steps).decode("utf-8", "replace")
