"""One prompt, once through the model: what every layer predicts at every position, and which memories dominate.

Streams are read with the model's own readout, values and votes under the values' projection; the numbers are those of
mining's predictions, for one text (paper, section 5 and Figures 7-11). One forward; the streams of all layers and
positions are projected together, and of the memories only those that are shown.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mnemoscope.errors import OptionError
from mnemoscope.memory import MemoryId
from mnemoscope.models import Block, LanguageModel, read_blocks
from mnemoscope.tracing.contributions import (
    SCORES,
    activity_of,
    contributions,
    event_of,
    folded_updates,
    tops_of_folded,
    value_norms,
    vote_codes,
    votes,
)
from mnemoscope.tracing.interventions import Interventions, intervene
from mnemoscope.tracing.prompts import (
    Guess,
    Token,
    check_finite,
    ids_of,
    prompt_tokens,
)
from mnemoscope.tracing.records import Dominant, Place, Position, decision
from mnemoscope.tracing.trace import Trace
from mnemoscope.tracing.vocabulary import top

STREAMS = ("residual", "ffn", "output")


def trace(
    model: LanguageModel,
    prompt: str,
    *,
    top: int = 10,
    memories: int = 10,
    interventions: Interventions = None,
) -> Trace:
    """What residual, feed-forward update and output of every layer predict after every token of the prompt.

    `top` predictions of each, and at most `memories` memories of each layer and position, by |m_i| norm(v_i). The
    prompt is plain text, read as mining reads a sentence; positions count its own tokens. `interventions` are made for
    this run as `intervene` does. Definitions: definitions.md sections 1, 2 and 4. Raises PromptError,
    InterventionError, OptionError, NotFinite.
    """
    if top < 1 or memories < 0:
        raise OptionError(f"top={top}, memories={memories} cannot be met; top must be 1 or more, memories 0 or more")
    tokens = prompt_tokens(model, prompt)
    with model.lock, torch.inference_mode(), intervene(model, interventions) as changes:
        blocks = run_blocks(model, tokens)
        guessed = _guesses(model, blocks, top, changed=bool(changes))
        memory_rows = _memories(model, blocks, memories)
    texts = model.vocabulary()[0]
    layers, length = len(blocks), len(tokens)
    places = tuple(
        tuple(_place(layer, j, guessed, memory_rows[layer], texts) for j in range(length)) for layer in range(layers)
    )
    positions = []
    for j in range(length):
        final = places[-1][j].output
        way = {
            name: decision([getattr(places[layer][j], name)[0].token.id for layer in range(layers)], final[0].token.id)
            for name in ("residual", "output")
        }
        positions.append(Position(j, Token(tokens[j], texts[tokens[j]]), final, way["residual"], way["output"]))
    first = model.beginning.token
    beginning = None if first is None else Token(first, texts[first])
    return Trace(model.spec, model.fingerprint, prompt, beginning, tuple(positions), places, changes)


@dataclass(frozen=True)
class _Streams:
    """One layer at the prompt's own positions, each `[position, ...]`."""

    residual: Tensor
    ffn: Tensor
    output: Tensor
    coefficients: Tensor


def run_blocks(model: LanguageModel, tokens: list[int]) -> list[_Streams]:
    """One forward of the prompt; every layer's streams and coefficients at its own positions."""
    first = model.beginning.length
    found: dict[int, _Streams] = {}

    def keep(layer: int, block: Block) -> None:
        parts = (block.residual, block.ffn_update, block.layer_output, block.coefficients)
        found[layer] = _Streams(*(part[0, first:].clone() for part in parts))

    with read_blocks(model, keep):
        model.backbone(ids_of(model, tokens))
    return [found[layer] for layer in range(model.sizes.layers)]


def guesses(model: LanguageModel, streams: Tensor, count: int, *, changed: bool) -> Iterator[tuple[Guess, ...]]:
    """The `count` best tokens of each row of `streams [row, hidden]` under the model's own readout."""
    texts = model.vocabulary()[0]
    known: dict[int, Token] = {}
    step = max(1, SCORES // model.sizes.vocabulary)
    for start in range(0, len(streams), step):
        scores = model.scores(streams[start : start + step], projection="lens")
        tokens, best = top(scores, count)
        highest = best[:, :1]
        # Not a number if any score is none, or if none is finite.
        totals = (scores - highest).exp_().sum(1, keepdim=True)
        check_finite(totals, changed=changed)
        shares = (best - highest).exp() / totals
        for ids, probabilities in zip(tokens.tolist(), shares.tolist(), strict=True):
            own = [known.get(id) or known.setdefault(id, Token(id, texts[id])) for id in ids]
            yield tuple(map(Guess, own, probabilities))


Guessed = dict[tuple[str, int, int], tuple[Guess, ...]]


def _guesses(model: LanguageModel, blocks: list[_Streams], count: int, *, changed: bool) -> Guessed:
    """The predictions by (stream, layer, position), all streams in few products."""
    length = len(blocks[0].residual)
    keys = [(name, layer, j) for name in STREAMS for layer in range(len(blocks)) for j in range(length)]
    rows = torch.cat([getattr(block, name) for name in STREAMS for block in blocks])
    return dict(zip(keys, guesses(model, rows, count, changed=changed), strict=True))


@dataclass(frozen=True)
class _Memories:
    """One layer's dominant memories `[position, rank]` with their votes, and its activity `[position]`, as lists."""

    layer: int
    memory: list[list[int]]
    coefficient: list[list[float]]
    contribution: list[list[float]]
    vote: list[list[int]]
    total: list[float]
    ffn_vote: list[int]
    activity: dict[str, list[float]]


def _memories(model: LanguageModel, blocks: list[_Streams], count: int) -> list[_Memories]:
    """The dominant memories of every layer and position; only their votes are projected."""
    chosen, codes, updates = [], [], []
    for layer, block in enumerate(blocks):
        norms = value_norms(model, layer)
        weight = contributions(block.coefficients, norms)
        memory, contribution = top(weight, count)
        coefficient = block.coefficients.gather(1, memory)
        codes.append(vote_codes(memory, coefficient))
        updates.append(folded_updates(model, layer, block.ffn))
        activity = activity_of(block.coefficients, norms)
        chosen.append((memory, coefficient, contribution, weight.sum(1), activity))
    voted = votes(model, codes)
    ffn_votes = torch.split(tops_of_folded(model, updates), [len(part) for part in updates])
    found = []
    for layer, (memory, coefficient, contribution, total, activity) in enumerate(chosen):
        numbers = {name: activity[name].tolist() for name in ("active", "effective", "top_share", "major")}
        found.append(
            _Memories(
                layer, memory.tolist(), coefficient.tolist(), contribution.tolist(), voted[layer].tolist(),
                total.tolist(), ffn_votes[layer].tolist(), numbers,
            )
        )  # fmt: skip
    return found


def _place(layer: int, j: int, guessed: Guessed, rows: _Memories, texts: list[str]) -> Place:
    residual, ffn, output = (guessed[name, layer, j] for name in STREAMS)
    listed = zip(rows.memory[j], rows.coefficient[j], rows.contribution[j], rows.vote[j], strict=True)
    return Place(
        layer=layer,
        position=j,
        residual=residual,
        ffn=ffn,
        output=output,
        event=event_of(residual[0].token.id, ffn[0].token.id, output[0].token.id),
        ffn_vote=Token(rows.ffn_vote[j], texts[rows.ffn_vote[j]]),
        active=int(rows.activity["active"][j]),
        effective=rows.activity["effective"][j],
        top_share=rows.activity["top_share"][j],
        major=int(rows.activity["major"][j]),
        memories=tuple(
            Dominant(
                MemoryId(layer, memory), m, 1 if m > 0 else -1, c, c / rows.total[j], Token(vote, texts[vote]),
                vote == rows.ffn_vote[j],
            )
            for memory, m, c, vote in listed
            if c > 0
        ),
    )  # fmt: skip
