"""Audits strings on any model: whether they are exposed, which memories carry them, and the cost of removing these.

Definitions: definitions.md, section 9, audit. `exposed` is a test at 5 %: the string's rank among random alternatives
of its form is as high as for at most 5 % of unseen strings.
"""

import math
import os
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from mnemoscope.atlas import Atlas
from mnemoscope.attribution.direct_effects import direct_effects
from mnemoscope.auditing.likelihoods import Likelihood, Tick, Tokens, likelihoods, mean_loss
from mnemoscope.corpus.sources.pydocs import documents
from mnemoscope.corpus.sources.secrets import read_secrets
from mnemoscope.corpus.sources.sentences import split_sentences
from mnemoscope.errors import ModelUnsupported, PromptError
from mnemoscope.foundation.formatting import show_text
from mnemoscope.foundation.memory_changes import Intervention
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.foundation.options.model_options import AS_USUAL, ModelOptions
from mnemoscope.foundation.options.prompt_options import AuditOptions
from mnemoscope.foundation.origin import Result, made_by
from mnemoscope.foundation.progress import Progress, report_to
from mnemoscope.models import LanguageModel
from mnemoscope.models.object_state import whole_use
from mnemoscope.models.readout.token_logits import TokenLogits
from mnemoscope.tracing.controls import contributions_of, draw_control
from mnemoscope.tracing.interventions import intervene
from mnemoscope.tracing.predictions import check_continues
from mnemoscope.tracing.records import Record, plain
from mnemoscope.tracing.scoring.scores import opens, require_model_of

LEVEL = 0.05
"""The false alarm rate on unseen strings."""


@dataclass(frozen=True, slots=True)
class Carrier(Record):
    """A memory that carries a string: its direct effect on the tokens' logits, and the cost of setting it to 0. `lost`
    is the string's log probability before minus that without the memory, in nats.
    """

    memory: MemoryId
    direct: float
    lost: float


@dataclass(frozen=True, slots=True)
class SwitchedOff(Record):
    """The string with its best carriers set to 0, beside controls: memories of their layers of similar strength there.
    `side_effect` is the change of the neighbouring text's mean loss, in nats per token. `controls_missing` carriers
    have no control: all other memories of the layer are silent there, or taken.
    """

    memories: tuple[MemoryId, ...]
    log_probability: float
    extractable: bool
    side_effect: float | None
    control_log_probability: float
    control_side_effect: float | None
    controls_missing: int = 0


@dataclass(frozen=True, slots=True)
class AuditedString(Record):
    """One string: its likelihood, its rank among alternatives, whether its first half yields the rest, and its
    carriers.

    `exposed`: it ranks higher among random strings of its form than 95 % of unseen strings. This implies that it was in
    the training text only if the varied characters were random: prose stands out among random letters either way.
    `exposure`, `rank` and `p_value` are None if nothing varies, `after` is None if no memory carries it.
    """

    text: str
    tokens: int
    log_probability: float
    rank: int | None
    alternatives: int
    exposure: float | None
    p_value: float | None
    exposed: bool
    extractable: bool
    prefix: str
    memories: tuple[Carrier, ...]
    after: SwitchedOff | None


def string_lines(audited: AuditedString) -> Iterator[str]:
    yield show_text(audited.text)
    verdict = "exposed" if audited.exposed else "not exposed"
    place = "nothing in it varies, so it has no rank"
    if audited.exposure is not None:
        place = f"rank {audited.rank:,} of {audited.alternatives + 1:,}, exposure {audited.exposure:.1f} bits"
    yield f"  {verdict}: log probability {audited.log_probability:.2f} over {audited.tokens} tokens; {place}"
    gives = "gives the rest" if audited.extractable else "does not give the rest"
    yield f"  {show_text(audited.prefix)!r} {gives}"
    for carrier in audited.memories[:5]:
        yield f"  {carrier.memory}: direct effect {carrier.direct:+.2f}; without it {-carrier.lost:+.2f} nats"
    after = audited.after
    if after is None:
        yield "  no memory could be named"
        return
    beside = "" if after.side_effect is None else f", other text {after.side_effect:+.4f} nats per token"
    still = "still extractable" if after.extractable else "not extractable"
    yield (
        f"  without {', '.join(map(str, after.memories))}: log probability {after.log_probability:.2f}, {still}{beside}"
    )
    control = "" if after.control_side_effect is None else f", other text {after.control_side_effect:+.4f}"
    missing = f" ({after.controls_missing} missing)" if after.controls_missing else ""
    yield f"  without others as strong there{missing}: log probability {after.control_log_probability:.2f}{control}"


@dataclass(frozen=True, repr=False)
class Audit(Result):
    """The audited strings in input order, and the text of the side effects. Prints as lines."""

    model: str
    fingerprint: str
    neighbours: str
    secrets: tuple[AuditedString, ...]
    made_by: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return {name: plain(value) for name, value in vars(self).items()}

    def verdicts(self) -> dict[str, tuple[bool, bool]]:
        """By string: (exposed, extractable)."""
        return {one.text: (one.exposed, one.extractable) for one in self.secrets}

    def __repr__(self) -> str:
        return f"<Audit of {len(self.secrets)} strings; print it to read it>"

    def __str__(self) -> str:
        exposed, extractable = (sum(getattr(s, name) for s in self.secrets) for name in ("exposed", "extractable"))
        head = (
            f"{self.model}: {exposed} of {len(self.secrets)} strings exposed, {extractable} extractable;"
            f" other text: {self.neighbours}"
        )
        return "\n\n".join([head, *("\n".join(string_lines(one)) for one in self.secrets)])


@opens
@whole_use
def audit(
    model: LanguageModel,
    secrets: str | os.PathLike[str] | Sequence[str],
    *,
    alternatives: int = 999,
    vary: str = "all",
    candidates: int = 16,
    top: int = 4,
    seed: int = 0,
    neighbours: int = 200,
    atlas: Atlas | None = None,
    progress: bool | Progress = True,
) -> Audit:
    """Measures how well the model knows each string, and which memories carry it. Without an atlas side effects are
    measured on the other strings, or for a single string on the built-in text. A function `progress` is called before
    every forward and may raise to end the audit.

    Raises ModelUnsupported for one that reads sentences whole or a source, PromptError for a string of one token, or
    longer than the context, ModelDiffers for an atlas of another model, CorpusError for the file, OptionError,
    NotFinite.

    Args:
        model: A LanguageModel, or a name that `load_model` takes.
        secrets: The strings, one of them, or as a Path a file of them, one a line.
        alternatives: Random strings of the same form beside each.
        vary: What is random in them: digits and letters, or only digits (all, digits).
        candidates: Memories switched off one by one.
        top: Memories switched off together.
        seed: Of the alternatives and the control memories.
        neighbours: Texts, at most, on which side effects are measured.
        atlas: An atlas of this model: its held-out sentences serve for side effects; or its folder.
        progress: True: a bar in a terminal or notebook; or a function of stage, done, total (or None) and note.
    """
    options = AuditOptions.of(locals())
    check_continues(model)
    if isinstance(secrets, os.PathLike):
        secrets = read_secrets(Path(secrets)).texts
    secrets = [secrets] if isinstance(secrets, str) else list(secrets)
    if atlas is not None:
        require_model_of(model, atlas)
    tokens = [string_tokens(model, text) for text in secrets]
    fixed, named = _neighbouring_text(model, tokens, atlas, options.neighbours)
    count = len(secrets)
    with report_to(progress) as report:
        calm = likelihoods(model, fixed, tick=partial(report, "auditing", 0, count, "strings"))
        audited = []
        for number, (text, of_string) in enumerate(zip(secrets, tokens, strict=True)):
            tick = partial(report, "auditing", number, count, "strings")
            beside, before = fixed, calm
            if not fixed:
                beside = [other for k, other in enumerate(tokens) if k != number][: options.neighbours]
                before = likelihoods(model, beside, tick=tick)
            audited.append(_audit_string(model, text, of_string, beside, before, options, tick))
            report("auditing", number + 1, count, "strings")
    hash = None if atlas is None else atlas.manifest_hash
    origin = made_by(model=model.fingerprint, atlas=hash, options=vars(options), seed=options.seed)
    return Audit(model.spec, model.fingerprint, named, tuple(audited), origin)


def as_python(
    model: str, text: str, options: AuditOptions, *, atlas: Path | None = None, opening: ModelOptions = AS_USUAL
) -> str:
    """A Python script that audits the string; `model` is the model's name, `opening` its options."""
    named = [f", {name}={value!r}" for name, value in options.keywords().items()]
    beside = "" if atlas is None else f", atlas={str(atlas)!r}"
    return f"""\
import mnemoscope as ms

{opening.python_line(model)}
text = {text!r}
print(ms.audit(model, [text]{"".join(named)}{beside}))
"""


def string_tokens(model: LanguageModel, text: str) -> list[int]:
    """The tokens of a string; raises ModelUnsupported for an encoder-decoder."""
    if model.sources is not None:
        raise ModelUnsupported(
            f"{model.spec} writes its text of a source, and an audit gives none; use trace or attribute (--source)"
        )
    try:
        tokens = model.prompt_tokens(text)
    except PromptError as error:
        raise PromptError(f"the string {text[:40]!r} cannot be audited: {error}") from None
    if len(tokens) < 2:
        raise PromptError(f"the string {text!r} is one token and cannot be cut into two halves; give longer strings")
    return tokens


def _neighbouring_text(
    model: LanguageModel, strings: Sequence[Tokens], atlas: Atlas | None, count: int
) -> tuple[Sequence[Tokens], str]:
    """The texts for side effects, and their name; empty if each string uses the others."""
    if atlas is not None:
        rows = atlas.table("sentences", columns=["tokens", "held_out"])
        fitting = rows.filter("held_out", pl.col("tokens").list.len().is_between(2, model.longest))
        texts = fitting["tokens"].head(count).to_list()
        if texts:
            return texts, f"{len(texts)} held-out sentences of {atlas.path}"
    if len(strings) > 1:
        return [], "the other strings"
    sentences = (s for document in documents("stdlib") for s in split_sentences(document, "sentence"))
    try:
        encoded = model.encode(list(islice(sentences, count)))
    except PromptError:  # the model has no tokenizer
        return [], "none"
    return [tokens for tokens in encoded if 2 <= len(tokens) <= model.longest], "sentences of builtin:pydocs"


def _audit_string(
    model: LanguageModel,
    text: str,
    tokens: list[int],
    neighbours: Sequence[Tokens],
    before: Sequence[Likelihood],
    options: AuditOptions,
    tick: Tick,
) -> AuditedString:
    others = draw_alternatives(text, count=options.alternatives, seed=options.seed, vary=options.vary)
    # If texts are token ids, some alternatives are outside the vocabulary.
    inside = [one for one in model.encode(others) if one and max(one) < model.sizes.vocabulary] if others else []
    encoded = [one[: model.longest] for one in inside]
    likelihood, *drawn = likelihoods(model, [tokens, *encoded], tick=tick)
    rank, exposure, p_value = stand(likelihood.total, [one.total for one in drawn])
    half = len(tokens) // 2
    raw = model.vocabulary()[1]
    carriers: list[Carrier] = []
    after = None
    if model.linear_head:
        tick()
        for name, effect in strongest(model, string_effects(model, tokens), options.candidates):
            left = without(model, [name], [tokens], tick=tick)[0].total
            carriers.append(Carrier(name, effect, likelihood.total - left))
        carriers.sort(key=lambda carrier: -carrier.lost)
        if best := tuple(carrier.memory for carrier in carriers if carrier.lost > 0)[: options.top]:
            controls = _controls(model, best, tokens, options.seed)
            without_best, *beside = without(model, best, [tokens, *neighbours], tick=tick)
            control, *control_beside = without(model, controls, [tokens, *neighbours], tick=tick)
            effects = [mean_loss(part) - mean_loss(before) if neighbours else None for part in (beside, control_beside)]
            extractable, missing = without_best.continues(len(tokens) - half), len(best) - len(controls)
            after = SwitchedOff(best, without_best.total, extractable, effects[0], control.total, effects[1], missing)
    return AuditedString(
        text,
        len(tokens),
        likelihood.total,
        rank,
        len(drawn),
        exposure,
        p_value,
        p_value is not None and p_value <= LEVEL,
        likelihood.continues(len(tokens) - half),
        b"".join(raw[token] for token in tokens[:half]).decode("utf-8", "replace"),
        tuple(carriers),
        after,
    )


def _controls(model: LanguageModel, memories: Sequence[MemoryId], tokens: list[int], seed: int) -> list[MemoryId]:
    """For each memory a distinct control at its strongest position in the string; fewer if a layer has none."""
    generator, first = np.random.default_rng((seed, 7)), model.reading.offset
    sizes = contributions_of(model, tokens, (memory.layer for memory in memories))
    numbers = [(one.layer, model.numbering(one.layer).number(one) or 0) for one in memories]
    taken, controls = set(numbers), []
    for layer, number in numbers:
        here = sizes[layer][first:]
        place = here[int(here[:, number].argmax())]
        barred = [other for where, other in taken if where == layer]
        other = draw_control(place, number, barred=barred, generator=generator)
        if other is not None:
            taken.add((layer, other))
            controls.append(model.numbering(layer).name(layer, other))
    return controls


_SETS = (string.digits, string.ascii_lowercase, string.ascii_uppercase)


def draw_alternatives(text: str, *, count: int, seed: int, vary: str = "all") -> list[str]:
    """At most `count` distinct strings of the form of `text`, without `text`. Letters beyond the 26 of English stay."""
    sets = {char: each for each in (_SETS if vary == "all" else _SETS[:1]) for char in each}
    places = [(place, sets[char]) for place, char in enumerate(text) if char in sets]
    possible = math.prod(len(each) for _, each in places) - 1
    generator = np.random.default_rng((seed, *text.encode()))
    alternatives: dict[str, None] = {}
    while len(alternatives) < min(count, possible):
        chars = list(text)
        for place, each in places:
            chars[place] = each[int(generator.integers(len(each)))]
        if (drawn := "".join(chars)) != text:
            alternatives[drawn] = None
    return list(alternatives)


def stand(total: float, others: Sequence[float]) -> tuple[int, float, float] | tuple[None, None, None]:
    """The rank (from 1; in a tie last) of a string among others, its exposure (log2 of all less log2 of the rank, in
    bits), and the probability that an unseen string of this form ranks as high or higher; None without others.
    """
    if not others:
        return None, None, None
    rank, candidates = 1 + sum(other >= total for other in others), 1 + len(others)
    return rank, math.log2(candidates) - math.log2(rank), rank / candidates


def string_effects(model: LanguageModel, tokens: Sequence[int]) -> list[Tensor]:
    """Per layer, what every memory adds to the logits of the string's tokens, summed over positions: `[memory]`,
    float32. The beginning token's coefficients are left out, unless only they precede the first token. Raises
    ModelUnsupported for a head that is not one matrix.
    """
    logits, targets = TokenLogits(model), torch.tensor(list(tokens[1:]))
    columns = model.reading.own(len(tokens) - 1)
    direct = direct_effects(model, tokens[:-1], columns, lambda final: logits.of_tokens(final, targets))
    return [effects.sum(0).float() for effects in direct.memories]


def strongest(model: LanguageModel, effects: Sequence[Tensor], count: int) -> list[tuple[MemoryId, float]]:
    """The `count` memories with the largest positive direct effect, largest first; ties by layer."""
    ranked = []
    for layer, of_layer in enumerate(effects):
        best = of_layer.topk(min(count, len(of_layer)))
        numbering = model.numbering(layer)
        pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ranked += [(-effect, layer, memory, numbering.name(layer, memory)) for effect, memory in pairs if effect > 0]
    return [(name, -effect) for effect, _, _, name in sorted(ranked, key=lambda one: one[:3])[:count]]


def without(
    model: LanguageModel, memories: Sequence[MemoryId], texts: Sequence[Sequence[int]], *, tick: Tick = lambda: None
) -> list[Likelihood]:
    with model.lock, intervene(model, [Intervention(memory) for memory in memories]):
        return likelihoods(model, texts, tick=tick)
