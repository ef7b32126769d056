"""`diff`: what made two runs answer differently: two models on one prompt, or one model on two (definitions.md 9).

Where their answers part, a is what the second predicts and b what the first does. The change of every part's direct
effect is taken at one shared scale of the final norm, so that the changes add up. Then memories of the second run are
set back to what they contributed in the first, beside controls.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from mnemoscope.atlas import Atlas
from mnemoscope.attribution.ablations import DRAWS, Grid, Places, draw_sets, powers, rank, spread
from mnemoscope.attribution.contrast import LogitDifference, choose_contrast
from mnemoscope.attribution.direct_effects import DirectEffects, check_head, direct_effects, limit_of
from mnemoscope.attribution.explanation import about_memories, origin_of
from mnemoscope.attribution.gradients import prompt_gradients, written_gradients
from mnemoscope.attribution.run_difference import Patched, RunDifference
from mnemoscope.attribution.setting_back import (
    Patch,
    SetBack,
    Written,
    coefficients_of,
    layers_of_experts,
    says_set_back,
    write_on,
    write_plainly,
    write_set_back,
)
from mnemoscope.errors import ModelDiffers, OptionError, PromptError
from mnemoscope.foundation.intervals import Floats
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.foundation.options.chat_prompt import Prompt, as_written, first_position, options_of, own_tokens
from mnemoscope.foundation.options.model_options import ModelOptions
from mnemoscope.foundation.options.prompt_file import check_restored
from mnemoscope.foundation.options.prompt_options import DiffOptions
from mnemoscope.foundation.progress import Progress, ignore_progress, report_to
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.models.object_state import hold_model, share_state
from mnemoscope.models.weight_changes import weight_changes
from mnemoscope.tracing.predictions import CachedRun, check_continues, ids_of
from mnemoscope.tracing.records import Token
from mnemoscope.tracing.scoring.ranking import top as best_of
from mnemoscope.tracing.scoring.scores import check_wide_numbers, opens, require_model_of

STEPS = 64
"""The most tokens that both continue before they never part."""
MOST = 256
"""The most memories that are set back together, but for all."""


@dataclass(frozen=True)
class Side:
    """One of the two runs, with the parts of F before the division by the final norm's scale."""

    model: LanguageModel
    tokens: tuple[int, ...]
    difference: LogitDifference
    effects: DirectEffects
    coefficients: list[Tensor]
    """`[column, memory]` by layer, float64."""
    ids: Tensor
    asked: int
    """The column."""

    @property
    def value(self) -> float:
        """F."""
        return float(self.effects.parts.logit[0])

    @property
    def scale(self) -> float:
        return float(self.effects.scale[0])

    @property
    def limit(self) -> float:
        effects = self.effects
        sizes = effects.sizes[0] / self.scale + effects.parts.head[0].abs()
        return limit_of(self.model, self.difference.sizes(effects.final)[0] + sizes)

    def parts(self) -> dict[tuple[str, int | None], float]:
        """What the scale divides, by part and layer."""
        effects, parts = self.effects, self.effects.parts
        divided: dict[tuple[str, int | None], float] = {("embedding", None): float(parts.embedding[0])}
        for layer, memories in enumerate(effects.memories):
            divided["attention", layer] = float(parts.attention[layer, 0])
            divided["memories", layer] = float(memories[0].sum())
            divided["other", layer] = float(parts.other[layer, 0])
        return divided | {("biases", None): float(effects.biases[0] - effects.behind[0])}


@dataclass(frozen=True)
class Parting:
    """Where two runs are compared: the prompts as asked, what each reads up to there, of which the last `generated`
    tokens were written by both or added; a and b, what the second and the first then predict (None: never); and the
    source that both read, of encoder-decoders.
    """

    prompts: tuple[str, str]
    tokens: tuple[tuple[int, ...], tuple[int, ...]]
    generated: int
    pair: tuple[int, int] | None
    source: str | None = None


@opens
def diff(
    model: LanguageModel,
    prompt: Prompt,
    *,
    other: LanguageModel | str | None = None,
    other_adapter: str | Path | None = None,
    other_prompt: Prompt | None = None,
    source: str | None = None,
    target: str | None = None,
    against: str | None = None,
    mask: int | None = None,
    both: bool = False,
    patch: Patch = "contribution",
    top: int = 128,
    generate: int = 0,
    restored: int = 0,
    atlas: Atlas | None = None,
    seed: int = 0,
    progress: bool | Progress = True,
) -> RunDifference:
    """What made the second run answer differently: `other`, the model with `other_adapter`, or the model on
    `other_prompt`. Two models continue the prompt until they part, unless both answers are given; masked models are
    compared at the mask.

    Raises PromptError, OptionError, ModelDiffers, ModelUnsupported.

    Args:
        model: A LanguageModel, or a name that `load_model` takes.
        prompt: Plain text, read as mining reads a sentence, or the messages of a chat.
        other: The second model, loaded or by name.
        other_adapter: The second is `model` with this PEFT adapter.
        other_prompt: The second is `model` on this prompt (or last message).
        source: What an encoder-decoder reads; prompts are texts so far.
        target: The second's answer; None: its prediction.
        against: The first's answer; None: its prediction.
        mask: The own token that a masked model does not see, of both prompts; None: they hold the mask token, once.
        both: List those that pushed the other way, too.
        patch: What is set back of a memory: contribution or coefficient.
        top: Memories listed.
        generate: Two models write N tokens each from where they part.
        restored: The second writes with the K first memories as in the first.
        atlas: An atlas of one of the models: labels, tokens, triggers; or its folder.
        seed: Of the controls.
        progress: True: a bar in a terminal or notebook; or a function of stage, done, total (or None) and note.
    """
    if [other, other_adapter, other_prompt].count(None) != 2:
        raise OptionError("give one of --other, --other-adapter and --other-prompt")
    DiffOptions.check(locals() | {"restored": restored or None})
    check_restored(restored, top, two_prompts=other_prompt is not None, generate=generate)
    model.with_source(source)
    if generate:
        check_continues(model)
    if mask is not None:
        prompt = model.prompt_text(prompt, mask=mask)
        other_prompt = None if other_prompt is None else model.prompt_text(other_prompt, mask=mask)
    second = model if other_prompt is not None else second_model(model, other, other_adapter)
    origin = origin_of(
        [model.fingerprint, second.fingerprint],
        atlas,
        seed,
        **options_of(prompt),
        other_prompt=as_written(other_prompt),
        **({} if source is None else {"source": source}),
        target=target,
        against=against,
        both=both,
        patch=patch,
        top=top,
        **({"generate": generate, "restored": restored} if generate else {}),
    )
    with (
        report_to(progress) as report,
        Differ(model, second, atlas=atlas, patch=patch, seed=seed, progress=report) as differ,
    ):
        parting = differ.find_parting(prompt, other_prompt, target, against, source=source)
        difference = differ.explain(parting, both=both, top=top)
        written = differ.write(parting, difference.towards(restored), generate)
        weights = pl.DataFrame() if second is model else weight_changes(model, second)
    return replace(difference, made_by=origin, written=written, weights=weights)


def second_model(model: LanguageModel, other: LanguageModel | str | None, adapter: str | Path | None) -> LanguageModel:
    """The model that is compared."""
    opening = replace(model.opening, adapter=None if adapter is None else str(adapter))
    if isinstance(other, LanguageModel):
        second = other
    elif adapter is not None:
        if not isinstance(model.source, str) or model.source.startswith("memory:"):
            raise OptionError("the model was given in memory; give --other, the model with its adapter")
        second = load_model(model.source, dtype=model.dtype, device=model.device, **opening.keywords())
    else:
        second = _opened_alike(other, model, replace(opening, revision=None))
    for name, one, its in (
        ("layers and memories", model.sizes.memories, second.sizes.memories),
        ("vocabulary", model.sizes.vocabulary, second.sizes.vocabulary),
        ("tokenizer", model.tokenizer_fingerprint, second.tokenizer_fingerprint),
        ("beginning token", model.reading, second.reading),
    ):
        if one != its:
            raise ModelDiffers(f"{second.spec} differs from {model.spec} in {name}; compare models of one shape")
    return second


def _opened_alike(name: str | None, model: LanguageModel, opening: ModelOptions) -> LanguageModel:
    """Read as the first, which may be the quantised one of the two."""
    try:
        return load_model(name, dtype=model.dtype, device=model.device, **opening.keywords())
    except OptionError:
        if not opening.dequantize:
            raise
    return _opened_alike(name, model, replace(opening, dequantize=False))


class Differ(ExitStack):
    """Two runs' models, held while it is entered."""

    def __init__(
        self,
        model: LanguageModel,
        second: LanguageModel,
        *,
        atlas: Atlas | None = None,
        patch: Patch = "contribution",
        seed: int = 0,
        progress: Progress = ignore_progress,
    ) -> None:
        super().__init__()
        self._models, self._atlas = (model, second), atlas
        self._patch, self._seed, self._progress = patch, seed, progress
        self.names = model.spec, second.spec
        if second is not model and share_state(model.anatomy.model, second.anatomy.model):
            raise OptionError(
                f"both models hold one network ({second.spec}), and are what is active in it now; give one a network of"
                " its own (copy.deepcopy) before it is loaded, or load it by its name"
            )
        for one in self._models:
            check_head(one)
            check_wide_numbers(one)
        if atlas is not None and second.fingerprint != atlas.manifest.model.fingerprint:
            require_model_of(model, atlas)

    def __enter__(self) -> "Differ":
        super().__enter__()
        for one in dict.fromkeys(self._models):
            self.enter_context(hold_model(one))
            self.enter_context(one.lock)
        return self

    def _with_source(self, source: str | None) -> tuple[LanguageModel, LanguageModel]:
        """Both models on prompts with this source; one for both where they are one."""
        models = [one.with_source(source) for one in dict.fromkeys(self._models)]
        return models[0], models[-1]

    def find_parting(
        self,
        prompt: Prompt,
        other_prompt: Prompt | None,
        target: str | None,
        against: str | None,
        *,
        source: str | None = None,
    ) -> Parting:
        models = self._with_source(source)
        first = second = models[0].prompt_text(prompt)
        if other_prompt is None:
            tokens, pair = self._one_prompt(models, first, target, against)
            both = tokens, tokens
        else:
            second = models[0].prompt_text(other_prompt)
            both, pair = self._two_prompts(models[0], first, second, target, against)
        return Parting((first, second), both, len(both[0]) - len(models[0].prompt_tokens(first)), pair, source)

    def _one_prompt(
        self, models: tuple[LanguageModel, LanguageModel], prompt: str, target: str | None, against: str | None
    ) -> tuple[tuple[int, ...], tuple[int, int] | None]:
        """The shared tokens up to where the answers part, and a and b; None where they never do."""
        model, second = models
        if (target is None) != (against is None):
            raise OptionError("give both answers, for and against, or neither, to compare the models' own")
        if target is not None:
            asked = choose_contrast(model, prompt, target=target, against=against)
            if asked.against is None:
                raise OptionError("the mean of all tokens is no answer of the first run; give a word for against")
            return asked.tokens, (asked.target, asked.against)
        tokens, runs = model.prompt_tokens(prompt), (CachedRun(model), CachedRun(second))
        for step in range(STEPS):
            self._progress("continuing", step, STEPS, "tokens")
            b, a = (run.predict(tokens, 1)[1][0].token.id for run in runs)
            if a != b:
                return tuple(tokens), (a, b)
            if not model.reading.causal:
                break
            tokens.append(a)
            if a in model.ends or len(tokens) >= model.longest:
                break
        return tuple(tokens), None

    @staticmethod
    def _two_prompts(
        model: LanguageModel, prompt: str, other: str, target: str | None, against: str | None
    ) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, int]]:
        tokens = [model.prompt_tokens(text) for text in (prompt, other)]
        if tokens[0] == tokens[1]:
            raise PromptError("the other prompt is the prompt itself; give another one")
        if target is not None and against is not None:
            one, its = (choose_contrast(model, text, target=target, against=against) for text in (prompt, other))
            if (one.target, one.against) != (its.target, its.against) or one.against is None:
                raise PromptError("after the other prompt the answers are other tokens; write them with their space")
            return (one.tokens, its.tokens), (one.target, one.against)
        asked = (prompt, against), (other, target)
        b, a = (choose_contrast(model, text, target=answer, against=None).target for text, answer in asked)
        if a == b:
            raise PromptError(
                f"the model answers both prompts with {model.vocabulary()[0][a]!r}; give other answers, for and against"
            )
        return (tuple(tokens[0]), tuple(tokens[1])), (a, b)

    def explain(self, parting: Parting, *, both: bool, top: int, patched: bool = True) -> RunDifference:
        """What changed between the two runs there; `patched` also sets memories back, which takes most of the time."""
        models, names, pair = self._with_source(parting.source), self.names, parting.pair
        model = models[1]
        texts, raw = model.vocabulary()
        written = parting.tokens[0][len(parting.tokens[0]) - parting.generated :]
        continued = b"".join(raw[token] for token in written).decode("utf-8", "replace")
        read = names, (str(parting.prompts[0]), str(parting.prompts[1])), continued, parting.tokens
        if pair is None:
            where = f"within {STEPS} tokens" if model.reading.causal else "at the mask"
            never = f"The two never part {where}: {names[0]} and {names[1]} answer alike."
            return RunDifference(*read, None, notes=(never,))
        answers = Token(pair[1], texts[pair[1]]), Token(pair[0], texts[pair[0]])
        one, its = (_run(asked, tokens, pair) for asked, tokens in zip(models, parting.tokens, strict=True))
        shared = (1 / one.scale + 1 / its.scale) / 2
        changes = _part_changes(one, its, shared)
        rows = [(part, layer, change) for (part, layer), change in changes.items() if change]
        parts = pl.DataFrame(rows, schema={"part": pl.String, "layer": pl.Int64, "change": pl.Float64}, orient="row")
        grid = Grid.of(model, len(its.tokens))
        direct = [grid.flat(side.effects.memories, its.asked) for side in (one, its)]
        change = (direct[1] - direct[0]) * shared
        aligned = (len(one.tokens), one.asked) == (len(its.tokens), its.asked)
        by_position = aligned and one.model is model
        score = _effects(one, its, grid) if by_position else change
        order = rank(np.flatnonzero(score > 0), score)
        listed = rank(np.flatnonzero(score if both else score > 0), np.abs(score))[:top]
        listed = rank(listed, score)
        coefficients = [grid.flat(side.coefficients, its.asked - side.asked) for side in (one, its)]
        frame = pl.DataFrame(
            {
                **grid.names(model, listed),
                "coefficient_first": coefficients[0][listed],
                "coefficient_second": coefficients[1][listed],
                "direct_first": direct[0][listed] / one.scale,
                "direct_second": direct[1][listed] / its.scale,
                "change": change[listed],
                **({"effect": score[listed]} if by_position else {}),
            },
            schema_overrides={"memory": pl.String, "position": pl.Int64},
        )
        words, at_first = [texts[token] for token in its.tokens], first_position(parting.prompts[1])
        frame = about_memories(frame, self._atlas, words, coefficient="coefficient_second", first=at_first)
        back = self._patch_back(one, its, grid, order, pair, everywhere=aligned) if patched else ()
        turned = (each.k for each in back if isinstance(each.k, int) and each.top_token.id == pair[1])
        where = "length: only the last position" if model.reading.causal else "length or mask: only the mask"
        notes = {
            f"A {model.block} block divides by its own norm: all memories of a changed layer change.": model.block
            in ("post-norm", "sandwich"),
            f"The prompts differ in {where} is compared.": not aligned,
            "What memories of other positions changed arrives as attention's change.": not by_position,
        }
        return RunDifference(
            *read,
            answers,
            one.value,
            its.value,
            parts,
            float(sum(changes.values())) - (its.value - one.value),
            one.limit + its.limit,
            frame,
            back,
            next(turned, None),
            tuple(note for note, holds in notes.items() if holds),
            own=own_tokens(parting.prompts[1]),
        )

    def write(self, parting: Parting, memories: Sequence[str], tokens: int) -> tuple[Written, ...]:
        """What both models write from where they part, and the second with memories set back, if there are any."""
        if parting.pair is None or not tokens:
            return ()
        first, second = self._with_source(parting.source)
        begun, named = parting.tokens[1], [MemoryId.parse(name) for name in memories]
        writers = {"first": write_plainly(first), "second": write_plainly(second)}
        if named:
            writers["set back"] = write_set_back(first, second, begun, named, self._patch)
        texts = {by: write_on(second, begun, tokens, predict) for by, predict in writers.items()}
        count = {"set back": len(named)}
        return tuple(Written(by, count.get(by), *text) for by, text in texts.items())

    def says(self, parting: Parting, tokens: Sequence[int], memories: Sequence[str], *, many: int) -> NDArray[np.int64]:
        """`says_set_back` after these tokens, with 1, 2, 4 and so on of the memories, up to all."""
        back = SetBack.of(*self._with_source(parting.source), tokens, self._patch)
        named = [MemoryId.parse(name) for name in memories]
        return says_set_back(back, named, powers(len(named), MOST), many=many, seed=(self._seed, 9))

    def _patch_back(
        self, one: Side, its: Side, grid: Grid, order: Places, pair: tuple[int, int], *, everywhere: bool
    ) -> tuple[Patched, ...]:
        largest, ks = order[:MOST], powers(len(order), MOST)
        sizes = grid.strengths(its.model, its.coefficients)
        drawn, missing = draw_sets(grid, sizes, largest, ks, barred=largest, seed=(self._seed, 7))
        sets: dict[int | str, Places] = {k: largest[:k] for k in ks}
        sets["all"] = np.flatnonzero(grid.flat((np.ones((1, memories)) for memories in grid.memories), its.asked))
        if everywhere:
            # Another model changes what the frame does, too.
            sets["everywhere"] = np.flatnonzero(grid.outside | (one.model is not its.model))
        values: list[float] = []
        tops: list[int] = []
        runs = [*sets.values(), *drawn]
        back = SetBack(
            one.model, its.model, its.ids, grid, grid.flat(one.coefficients, its.asked - one.asked), self._patch
        )
        for streams in back.streams(runs):
            with torch.inference_mode():
                values += its.difference.of(streams).tolist()
                tops += best_of(its.model.scores(streams, projection="lens"), 1)[0][:, 0].tolist()
            self._progress("setting back", len(values), len(runs), "runs")
        controls = np.array(values[len(sets) :]).reshape(DRAWS, len(ks))
        texts, gap = its.model.vocabulary()[0], its.value - one.value
        return tuple(
            Patched(
                k,
                values[at],
                None if abs(gap) < 1e-3 else (its.value - values[at]) / gap,
                Token(tops[at], texts[tops[at]]),
                *((spread(controls[:, at]), missing[at]) if at < len(ks) else (None, None)),
            )
            for at, k in enumerate(sets)
        )


def _part_changes(one: Side, its: Side, shared: float) -> dict[tuple[str, int | None], float]:
    """By part and layer, at the `shared` inverse scale; what is left is the change of the scale itself."""
    before, after = one.parts(), its.parts()
    changes = {key: (after[key] - before[key]) * shared for key in before}
    changes["biases", None] += float(its.effects.behind[0] - one.effects.behind[0])
    whole = (sum(before.values()) + sum(after.values())) / 2
    changes["head", None] = float(its.effects.parts.head[0] - one.effects.parts.head[0])
    return changes | {("norm_scale", None): whole * (1 / its.scale - 1 / one.scale)}


def _effects(one: Side, its: Side, grid: Grid) -> Floats:
    """(m2 - m1) dF/dm of the second run, 0 inside the frame."""
    gradients = [gradient for _, gradient in prompt_gradients(its.model, its.ids, its.difference)]
    if routed := layers_of_experts(its.model):
        for layer, gradient in written_gradients(its.model, its.ids, its.difference, routed).items():
            gradients[layer] = gradient
    products = (
        (after - before) * gradient.double()
        for before, after, gradient in zip(one.coefficients, its.coefficients, gradients, strict=True)
    )
    return np.where(grid.outside, grid.flat(products), 0)


def _run(model: LanguageModel, tokens: tuple[int, ...], pair: tuple[int, int]) -> Side:
    difference = LogitDifference(model, *pair)
    asked = model.reading.asked_column(model.reading.frame(tokens))
    effects = direct_effects(
        model, tokens, slice(asked, asked + 1), lambda streams: difference.directions(streams, divided=False)
    )
    ids = ids_of(model, list(tokens))
    return Side(model, tokens, difference, effects, coefficients_of(model, ids), ids, asked)
