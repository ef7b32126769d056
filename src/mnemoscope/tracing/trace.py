"""One prompt, once through the model: what every layer predicts at every position, and which memories dominate.

Streams are read with the model's own readout, values and votes under the values' projection; the numbers are those of
mining's predictions, for one text (paper, section 5 and Figures 7-11).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mnemoscope.foundation.formatting import page_html
from mnemoscope.foundation.memory_changes import Intervention, Interventions, counted_from, interventions_of
from mnemoscope.foundation.memory_names import Numbering
from mnemoscope.foundation.options.chat_prompt import Prompt, choose_position, first_position, options_of, own_tokens
from mnemoscope.foundation.options.prompt_options import TraceOptions
from mnemoscope.foundation.origin import Result, made_by
from mnemoscope.models import Block, LanguageModel, read_blocks, read_final
from mnemoscope.models.object_state import hold_model
from mnemoscope.tracing.block_predictions import STREAMS, BlockPredictions, PromptStreams, predict_blocks
from mnemoscope.tracing.interventions import intervene
from mnemoscope.tracing.logit_sums import LogitSum, logit_sums
from mnemoscope.tracing.predictions import best_predictions, ids_of
from mnemoscope.tracing.records import Dominant, LayerState, Position, Token, decision, plain
from mnemoscope.tracing.rendering import layer_lines, position_lines, sum_lines
from mnemoscope.tracing.scoring.ranking import top as best_of
from mnemoscope.tracing.scoring.scores import (
    activity_of,
    check_wide_numbers,
    contributions,
    event_of,
    opens,
    value_norms,
    vote_codes,
    votes,
)


@dataclass(frozen=True, repr=False)
class Trace(Result):
    """A prompt's way through the layers; `places[layer]` and `positions` begin with the prompt's first token. Prints as
    a table, also in notebooks.

    Positions count the `own` tokens of a chat (None: all) from 0; those of its template are below 0, or behind them.
    `logits` holds, per position, the parts of the prediction's logit. `interventions` are the changes passed to
    `trace`; those of a surrounding `intervene` are not recorded. `mask` is the masked position of a model that reads
    sentences whole, which predicts the token at each position.
    """

    model: str
    fingerprint: str
    prompt: str
    beginning: Token | None
    positions: tuple[Position, ...]
    places: tuple[tuple[LayerState, ...], ...]
    logits: tuple[LogitSum, ...] = ()
    interventions: tuple[Intervention, ...] = ()
    made_by: Mapping[str, Any] = field(default_factory=dict)
    own: int | None = None
    mask: int | None = None

    @property
    def tokens(self) -> tuple[Token, ...]:
        return tuple(position.token for position in self.positions)

    def to_dict(self) -> dict[str, Any]:
        """The trace as plain JSON: tokens with id and text, probabilities, memories by name."""
        return {
            "model": self.model,
            "fingerprint": self.fingerprint,
            "prompt": self.prompt,
            "beginning": plain(self.beginning),
            "own": self.own,
            "mask": self.mask,
            "interventions": list(map(str, self.interventions)),
            "positions": plain(self.positions),
            "layers": [{"layer": layer, "positions": plain(states)} for layer, states in enumerate(self.places)],
            "logits": plain(self.logits),
            "made_by": dict(self.made_by),
        }

    def text(self, *, position: int | None = None, memories: int = 3) -> str:
        """The trace as text: every position's prediction, and one position's layers with so many `memories` each.

        `position` counts the own tokens from 0; negative ones from their end, and None is the prompt's last, or its
        mask. Raises PromptError for a position that the prompt does not have.
        """
        index = self.index_of(position)
        asked = self.positions[index]
        about = [self._about(), *(["with " + self._changes()] if self.interventions else [])]
        layers = layer_lines(asked, self.places, memories, where=self.where)
        written = ["", *sum_lines(asked, self.logits[index])] if self.logits else []
        listed = position_lines(self.positions, self.own, of_next=self.mask is None)
        return "\n".join([*about, "", *listed, "", *layers, *written])

    @property
    def where(self) -> str:
        """Where predictions stand: after a position, or at it."""
        return "after" if self.mask is None else "at"

    def index_of(self, position: int | None) -> int:
        """Where a position is among `positions`, as `text` counts it."""
        position = self.mask if position is None else position
        return choose_position(len(self.positions), position, first=self.positions[0].position, own=self.own)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Trace of {self._about()}; print it to read it>"

    def _repr_html_(self) -> str:
        about = self._about() + (f" with {self._changes()}" if self.interventions else "")
        return page_html("trace_html", self.to_dict(), about)

    def _about(self) -> str:
        return f"{self.model}: {len(self.positions)} tokens, {len(self.places)} layers"

    def _changes(self) -> str:
        return ", ".join(map(str, self.interventions))


@opens
def trace(
    model: LanguageModel,
    prompt: Prompt,
    *,
    source: str | None = None,
    mask: int | None = None,
    top: int = 10,
    memories: int = 10,
    interventions: Interventions = None,
) -> Trace:
    """What residual, feed-forward update and output of every layer predict after every token of the prompt, or, in a
    masked model, at it; positions count its own tokens. Definitions: definitions.md sections 1, 2 and 4.

    Raises PromptError, InterventionError, OptionError, ModelUnsupported, NotFinite.

    Args:
        model: A LanguageModel, or a name that `load_model` takes.
        prompt: Plain text, read as mining reads a sentence, or the messages of a chat.
        source: What an encoder-decoder reads; the prompt is its text so far.
        mask: The own token that a masked model does not see; below 0 from the end. `mask_each` takes all in turn.
        top: Predictions of each stream.
        memories: Dominant memories of each layer and position, at most, by `|m_i|` norm(v_i).
        interventions: Changes of memories, as in `intervene`: {"L10.M222": 0.0} or ["L10.M222=0@last"].
    """
    TraceOptions.check(locals())
    check_wide_numbers(model)
    model = model.with_source(source)
    prompt, changes = model.prompt_text(prompt, mask=mask), interventions_of(interventions, of=model)
    tokens, at_first = model.prompt_tokens(prompt), first_position(prompt)
    masked = None if model.reading.causal else model.reading.asked_column(tokens) + at_first
    made = counted_from(changes, at_first)
    with hold_model(model), model.lock, torch.inference_mode(), intervene(model, made):
        blocks, last = run_blocks(model, tokens)
        read = predict_blocks(model, blocks, top, changed=bool(changes))
        finals = list(best_predictions(model, last, top, changed=bool(changes)))
        places = _layer_states(model, blocks, read, memories, at_first)
        sums = logit_sums(model, tokens, [final[0].token.id for final in finals], at_first)
    texts = model.vocabulary()[0]
    positions = []
    for j, (token, final) in enumerate(zip(tokens, finals, strict=True)):
        residual, output = (
            decision([getattr(states[j], name)[0].token.id for states in places], final[0].token.id)
            for name in ("residual", "output")
        )
        positions.append(Position(j + at_first, Token(token, texts[token]), final, residual, output))
    first = model.beginning.token
    beginning = None if first is None else Token(first, texts[first])
    options = {"top": top, "memories": memories, "interventions": list(map(str, changes))}
    options |= {"source": model.given_source} if model.given_source else {}
    origin = made_by(model=model.fingerprint, atlas=None, options=options_of(prompt) | options, seed=None)
    all_of_it = tuple(positions), places, sums, changes, origin
    return Trace(model.spec, model.fingerprint, str(prompt), beginning, *all_of_it, own_tokens(prompt), masked)


def run_blocks(model: LanguageModel, tokens: list[int]) -> tuple[list[PromptStreams], Tensor]:
    """One forward of the prompt; every layer's streams and coefficients at its own positions, and the final stream."""
    columns = model.reading.own(len(tokens))
    streams: dict[int, PromptStreams] = {}
    final: list[Tensor] = []

    def keep(layer: int, block: Block) -> None:
        parts = (block.residual, block.ffn_update, block.layer_output, block.coefficients)
        streams[layer] = PromptStreams(*(part[0, columns].clone() for part in parts))

    with read_blocks(model, keep), read_final(model, lambda stream: final.append(stream[0, columns].clone())):
        model.backbone(ids_of(model, tokens))
    return [streams[layer] for layer in range(model.sizes.layers)], final[0]


def _layer_states(
    model: LanguageModel, blocks: list[PromptStreams], read: BlockPredictions, count: int, first: int
) -> tuple[tuple[LayerState, ...], ...]:
    columns, codes = [], []
    for layer, block in enumerate(blocks):
        norms = value_norms(model, layer)
        weight = contributions(block.coefficients, norms)
        memory, contribution = best_of(weight, count)
        coefficient = block.coefficients.gather(1, memory)
        codes.append(vote_codes(memory, coefficient))
        activity = activity_of(block.coefficients, norms)
        numbers = (activity[name] for name in ("active", "effective", "top_share", "major"))
        columns.append([memory, coefficient, contribution, weight.sum(1), *numbers])
    voted = votes(model, codes)
    texts = model.vocabulary()[0]
    states = []
    for layer, of_layer in enumerate(columns):
        rows = zip(*(column.tolist() for column in (voted[layer], read.votes[layer], *of_layer)), strict=True)
        naming = model.numbering(layer)
        states.append(tuple(_layer_state(layer, j, read, row, texts, naming, j + first) for j, row in enumerate(rows)))
    return tuple(states)


def _layer_state(
    layer: int, j: int, read: BlockPredictions, row: tuple[Any, ...], texts: list[str], naming: Numbering, position: int
) -> LayerState:
    own_votes, ffn_vote, dominant, coefficients, parts, total, active, effective, top_share, major = row
    residual, ffn, output = (read.predicted[name, layer, j] for name in STREAMS)
    event = event_of(residual[0].token.id, ffn[0].token.id, output[0].token.id)
    memories = tuple(
        Dominant(naming.name(layer, i), m, 1 if m > 0 else -1, c, c / total, Token(vote, texts[vote]), vote == ffn_vote)
        for i, m, c, vote in zip(dominant, coefficients, parts, own_votes, strict=True)
        if c > 0
    )
    vote_of_update = Token(ffn_vote, texts[ffn_vote])
    return LayerState(
        layer, position, residual, ffn, output, event, vote_of_update, active, effective, top_share, major, memories
    )
