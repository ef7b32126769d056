"""`diff`: what made two runs answer differently: two models on one prompt, or one model on two (definitions.md 9).

Where their answers part, a is what the second says and b what the first says. The change of every part's direct effect
is taken at one shared scale of the final norm, so that the changes add up. Then memories of the second run are set back
to what they contributed in the first, beside controls.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import torch

from mnemoscope.atlas import Atlas
from mnemoscope.attribution.ablations import DRAWS, Ablations, Change, Grid, Places, draw_sets, powers
from mnemoscope.attribution.attribute import LISTED
from mnemoscope.attribution.attribution import about_memories, spread
from mnemoscope.attribution.contrast import LogitDifference, choose_contrast
from mnemoscope.attribution.direct_effects import LIMIT, DirectEffects, check_head, direct_effects
from mnemoscope.attribution.gradients import coefficient_gradients, refuse_out_of_memory
from mnemoscope.attribution.patching import PATCHES, Patch, Patcher, Run
from mnemoscope.attribution.run_difference import Patched, RunDifference
from mnemoscope.errors import ModelDiffers, OptionError, PromptError
from mnemoscope.foundation.intervals import Floats
from mnemoscope.foundation.origin import made_by
from mnemoscope.foundation.progress import Progress, ignore_progress
from mnemoscope.models import LanguageModel, load_model, read_coefficients
from mnemoscope.tracing.predictions import CachedRun, ids_of, last_streams, prompt_tokens
from mnemoscope.tracing.records import Token
from mnemoscope.tracing.scoring.ranking import top as best_of
from mnemoscope.tracing.scoring.scores import check_wide_numbers, contributions, require_model_of, value_norms

STEPS = 64
"""The most tokens that both continue before they never part."""
MOST = 256
"""The most memories that are set back together, but for all."""
_NO_CHANGE = 1e-3


@dataclass(frozen=True)
class Side:
    """One of the two runs, with the parts of F before the division by the final norm's scale."""

    model: LanguageModel
    tokens: tuple[int, ...]
    difference: LogitDifference
    effects: DirectEffects
    coefficients: list[Floats]

    @property
    def value(self) -> float:
        """F."""
        return float(self.effects.parts.logit[0])

    @property
    def scale(self) -> float:
        return float(self.effects.scale[0])

    @property
    def before(self) -> float:
        """The part of the biases that the scale divides."""
        return float(self.effects.biases[0] - self.effects.behind[0])

    @property
    def limit(self) -> float:
        return LIMIT * float(self.difference.sizes(self.effects.final)[0] + self.effects.sizes[0] / self.scale)

    def parts(self) -> dict[tuple[str, int | None], float]:
        """What the scale divides, by part and layer."""
        parts = self.effects.parts
        found: dict[tuple[str, int | None], float] = {("embedding", None): float(parts.embedding[0])}
        for layer in range(len(parts.attention)):
            found["attention", layer] = float(parts.attention[layer, 0])
            found["memories", layer] = float(self.effects.memories[layer][0].sum())
            found["other", layer] = float(parts.other[layer, 0])
        return found | {("biases", None): self.before}


@dataclass(frozen=True)
class Parting:
    """Where two runs are compared: what each reads up to there, of which the last `generated` tokens were written by
    both or added; and a and b, what the second and the first say then (None: they never part).
    """

    tokens: tuple[tuple[int, ...], tuple[int, ...]]
    generated: int
    pair: tuple[int, int] | None


def diff(
    model: LanguageModel,
    prompt: str,
    *,
    other: LanguageModel | str | None = None,
    other_adapter: str | Path | None = None,
    other_prompt: str | None = None,
    target: str | None = None,
    against: str | None = None,
    both: bool = False,
    patch: Patch = "contribution",
    top: int = LISTED,
    atlas: Atlas | None = None,
    seed: int = 0,
    progress: Progress = ignore_progress,
) -> RunDifference:
    """What made the second run answer differently: `other` (a model or its name), the model with `other_adapter`, or
    the model on `other_prompt`.

    Two models continue the prompt until they part, unless `target` and `against` are given. `top` memories are listed,
    those that pushed towards the second's answer, and with `both` those that pushed away. `patch="coefficient"` sets
    back coefficients in place of contributions. Raises PromptError, OptionError, ModelDiffers, ModelUnsupported.
    """
    if [other, other_adapter, other_prompt].count(None) != 2:
        raise OptionError("give one of --other, --other-adapter and --other-prompt")
    if patch not in PATCHES or top < 0 or seed < 0:
        raise OptionError(f"patch={patch!r}, top={top}, seed={seed} is not possible; patch is {' or '.join(PATCHES)}")
    second = model if other_prompt is not None else second_model(model, other, other_adapter)
    options = {"prompt": prompt, "other_prompt": other_prompt, "target": target, "against": against, "both": both,
               "patch": patch, "top": top}  # fmt: skip
    origin = made_by(
        model=[model.fingerprint, second.fingerprint], atlas=None if atlas is None else atlas.manifest_hash,
        options=options, seed=seed,
    )  # fmt: skip
    with Differ(model, second, atlas=atlas, patch=patch, seed=seed, progress=progress) as differ:
        found = differ.compare(prompt, other_prompt, target, against, both=both, top=top)
    return replace(found, made_by=origin)


def second_model(model: LanguageModel, other: LanguageModel | str | None, adapter: str | Path | None) -> LanguageModel:
    """The model that is compared. Raises what loading raises, and ModelDiffers."""
    if isinstance(other, LanguageModel):
        second = other
    elif adapter is not None:
        if not isinstance(model.source, str) or model.source.startswith("memory:"):
            raise OptionError("the model is one in memory; give --other, the model with its adapter")
        opening = replace(model.opening, adapter=str(adapter))
        second = load_model(model.source, dtype=model.dtype, device=model.device, **opening.keywords())
    else:
        second = load_model(other, dtype=model.dtype, device=model.device)
    for name, one, its in (
        ("layers and memories", model.sizes.memories, second.sizes.memories),
        ("vocabulary", model.sizes.vocabulary, second.sizes.vocabulary),
        ("tokenizer", model.tokenizer_fingerprint, second.tokenizer_fingerprint),
        ("beginning token", model.reading, second.reading),
    ):
        if one != its:
            raise ModelDiffers(f"{second.spec} differs from {model.spec} in {name}; compare models of one shape")
    return second


class Differ(ExitStack):
    """Two runs' models, held while it is entered."""

    def __init__(
        self, model: LanguageModel, second: LanguageModel, *, atlas: Atlas | None = None,
        patch: Patch = "contribution", seed: int = 0, progress: Progress = ignore_progress,
    ) -> None:  # fmt: skip
        super().__init__()
        self._models, self._atlas, self._patch, self._seed, self._progress = (
            (model, second),
            atlas,
            patch,
            seed,
            progress,
        )
        self.names = model.spec, second.spec
        for one in self._models:
            check_head(one)
            check_wide_numbers(one)
        if atlas is not None and not second.is_model_of(atlas.manifest["model"]):
            require_model_of(model, atlas)

    def __enter__(self) -> "Differ":
        super().__enter__()
        for one in dict.fromkeys(self._models):
            self.enter_context(one.in_use(compare=True))
            self.enter_context(one.lock)
        return self

    def compare(
        self, prompt: str, other_prompt: str | None, target: str | None, against: str | None, *, both: bool, top: int
    ) -> RunDifference:
        parting = self.find_parting(prompt, other_prompt, target, against)
        return self.explain(parting, both=both, top=top)

    def find_parting(self, prompt: str, other_prompt: str | None, target: str | None, against: str | None) -> Parting:
        if other_prompt is None:
            tokens, pair = self._one_prompt(prompt, target, against)
            both = tokens, tokens
        else:
            both, pair = self._two_prompts(prompt, other_prompt, target, against)
        return Parting(both, len(both[0]) - len(prompt_tokens(self._models[0], prompt)), pair)

    def _one_prompt(
        self, prompt: str, target: str | None, against: str | None
    ) -> tuple[tuple[int, ...], tuple[int, int] | None]:
        """The shared tokens up to where the answers part, and a and b; None where they never do."""
        model, second = self._models
        if (target is None) != (against is None):
            raise OptionError("give both answers, for and against, or neither: then the models say them")
        if target is not None:
            asked = choose_contrast(model, prompt, target=target, against=against)
            if asked.against is None:
                raise OptionError("against the mean there is no answer of the first run; give a word")
            return asked.tokens, (asked.target, asked.against)
        tokens, runs = prompt_tokens(model, prompt), (CachedRun(model), CachedRun(second))
        for step in range(STEPS):
            self._progress("continuing", step, STEPS, "tokens")
            b, a = (run.predict(tokens, 1)[1][0].token.id for run in runs)
            if a != b:
                return tuple(tokens), (a, b)
            tokens.append(a)
            if a in model.ends or len(tokens) >= model.longest:
                break
        return tuple(tokens), None

    def _two_prompts(
        self, prompt: str, other: str, target: str | None, against: str | None
    ) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, int]]:
        model = self._models[0]
        if other == prompt:
            raise PromptError("the other prompt is the prompt itself; give another one")
        if target is not None and against is not None:
            one, its = (choose_contrast(model, text, target=target, against=against) for text in (prompt, other))
            if (one.target, one.against) != (its.target, its.against) or one.against is None:
                raise PromptError("the answers are other tokens after the other prompt; give them with their space")
            return (one.tokens, its.tokens), (one.target, one.against)
        tokens = [prompt_tokens(model, text) for text in (prompt, other)]
        b, a = (_predict(model, own) for own in tokens)
        if target is not None:
            a = choose_contrast(model, other, target=target, against=None).target
        if against is not None:
            b = choose_contrast(model, prompt, target=against, against=None).target
        if a == b:
            said = model.vocabulary()[0][a]
            raise PromptError(f"both prompts are answered by {said!r}; give other answers, for and against")
        return (tuple(tokens[0]), tuple(tokens[1])), (a, b)

    def explain(self, parting: Parting, *, both: bool, top: int, patched: bool = True) -> RunDifference:
        """What changed between the two runs there; `patched` also sets memories back, which takes most of the time."""
        texts, known = self._models[0].vocabulary()
        one, its = (b"".join(known[token] for token in own).decode("utf-8", "replace") for own in parting.tokens)
        names, prompts, pair = self.names, (one, its), parting.pair
        if pair is None:
            never = f"The two never part within {STEPS} tokens: {names[0]} and {names[1]} answer alike."
            return RunDifference(names, prompts, None, parting.generated, notes=(never,))
        first, second = (_run(model, own, pair) for model, own in zip(self._models, parting.tokens, strict=True))
        found = RunDifference(
            names, prompts, (Token(pair[1], texts[pair[1]]), Token(pair[0], texts[pair[0]])), parting.generated,
            first.value, second.value, limit=first.limit + second.limit,
        )  # fmt: skip
        return self._explain(first, second, found, pair, both=both, top=top, patched=patched)

    def _explain(
        self, one: Side, its: Side, found: RunDifference, pair: tuple[int, int], *, both: bool, top: int, patched: bool
    ) -> RunDifference:
        model, offset = its.model, its.model.reading.offset
        shared = (1 / one.scale + 1 / its.scale) / 2
        before, after = one.parts(), its.parts()
        changes = {key: (after[key] - before[key]) * shared for key in before}
        changes["biases", None] += float(its.effects.behind[0] - one.effects.behind[0])
        whole = (sum(before.values()) + sum(after.values())) / 2
        changes["norm_scale", None] = whole * (1 / its.scale - 1 / one.scale)
        rows = [(part, layer, change) for (part, layer), change in changes.items() if change]
        parts = pl.DataFrame(rows, schema={"part": pl.String, "layer": pl.Int64, "change": pl.Float64}, orient="row")
        columns = offset + len(its.tokens)
        grid, last = Grid(model.sizes.memories, columns), Grid(model.sizes.memories, 1)
        change = np.concatenate([
            ((second[0] - first[0]) * shared).numpy()
            for first, second in zip(one.effects.memories, its.effects.memories, strict=True)
        ])  # fmt: skip
        layers, _, memories = last.split(np.arange(len(change)))
        ends = grid.firsts[layers] + (columns - 1) * np.array(grid.memories)[layers] + memories
        aligned = len(one.tokens) == len(its.tokens)
        by_position = aligned and one.model is model
        if by_position:
            places, score = self._effects(one, its, grid)
        else:
            places, score = ends, change
        order = places[np.argsort(-score, kind="stable")][: int((score > 0).sum())]
        listed = np.flatnonzero(score if both else score > 0)
        listed = listed[np.argsort(-np.abs(score[listed]), kind="stable")][:top]
        listed = listed[np.argsort(-score[listed], kind="stable")]
        frame = self._table(one, its, grid, places[listed], dict(zip(ends.tolist(), change.tolist(), strict=True)))
        if by_position:
            frame = frame.with_columns(effect=score[listed])
        texts = model.vocabulary()[0]
        frame = about_memories(
            frame.with_columns(coefficient="coefficient_second"), self._atlas, [texts[token] for token in its.tokens]
        ).drop("coefficient")
        back = self._patch_back(one, its, grid, order, ends, pair, everywhere=aligned) if patched else ()
        turned = (each.k for each in back if isinstance(each.k, int) and each.top_token.id == pair[1])
        return replace(
            found, parts=parts, residual_error=float(sum(changes.values())) - (its.value - one.value), memories=frame,
            patched=back, turns_at=next(turned, None), notes=self._notes(one, its, aligned, by_position),
        )  # fmt: skip

    @staticmethod
    def _notes(one: Side, its: Side, aligned: bool, by_position: bool) -> tuple[str, ...]:
        notes = []
        if its.model.block in ("post-norm", "sandwich"):
            notes.append(f"A {its.model.block} block divides by its own norm: all memories of a changed layer change.")
        if not aligned:
            notes.append("The prompts differ in length: only the last position is compared.")
        if not by_position:
            notes.append("What memories of earlier positions changed arrives as attention's change.")
        return tuple(notes)

    def _effects(self, one: Side, its: Side, grid: Grid) -> tuple[Places, Floats]:
        """Every place outside the frame, and (m2 - m1) dF/dm of the second run."""
        ids = ids_of(its.model, list(its.tokens))
        with refuse_out_of_memory(grid.columns):
            found = coefficient_gradients(its.model, ids, lambda final: its.difference.of(final[:, -1]))
        effects = [
            (its.coefficients[layer] - one.coefficients[layer]) * gradient[0].double().numpy()
            for layer, (_, gradient) in sorted(found.items())
        ]
        flat = np.concatenate([each.reshape(-1) for each in effects])
        places = np.flatnonzero(grid.outside(its.model.reading.offset + its.model.reading.first))
        return places, flat[places]

    @staticmethod
    def _table(one: Side, its: Side, grid: Grid, places: Places, change: dict[int, float]) -> pl.DataFrame:
        shift = len(one.coefficients[0]) - grid.columns
        rows = []
        for place, layer, column, memory in zip(
            *(each.tolist() for each in (places, *grid.split(places))), strict=True
        ):
            direct = [
                float(side.effects.memories[layer][0, memory]) / side.scale if place in change else 0.0
                for side in (one, its)
            ]
            rows.append((
                str(its.model.numbering(layer).name(layer, memory)), column - its.model.reading.offset,
                float(one.coefficients[layer][column + shift, memory]), float(its.coefficients[layer][column, memory]),
                *direct, change.get(place, 0.0),
            ))  # fmt: skip
        names = ("coefficient_first", "coefficient_second", "direct_first", "direct_second", "change")
        return pl.DataFrame(
            rows, schema={"memory": pl.String, "position": pl.Int64, **dict.fromkeys(names, pl.Float64)}, orient="row"
        )

    def _patch_back(
        self, one: Side, its: Side, grid: Grid, order: Places, ends: Places, pair: tuple[int, int], *, everywhere: bool
    ) -> tuple[Patched, ...]:
        patcher = Patcher(Run(one.model, one.coefficients), Run(its.model, its.coefficients), grid, self._patch)
        runner = Ablations(its.model, ids_of(its.model, list(its.tokens)), its.difference, grid)
        chosen, ks = order[:MOST], powers(len(order), MOST)
        sizes = [
            contributions(torch.from_numpy(own), value_norms(its.model, layer).cpu()).numpy()
            for layer, own in enumerate(its.coefficients)
        ]
        drawn, missing = draw_sets(grid, sizes, chosen, ks, barred=chosen, seed=(self._seed, 7))
        sets: list[Places] = [chosen[:k] for k in ks] + [ends]
        names: list[int | str] = [*ks, "all"]
        if everywhere:
            # Another model changes what the frame does, too.
            every = np.arange(grid.firsts[-1])
            sets.append(
                every
                if one.model is not its.model
                else every[grid.outside(its.model.reading.offset + its.model.reading.first)]
            )
            names.append("everywhere")
        sets += drawn
        values: list[float] = []
        says: list[int] = []
        tick = partial(self._tick, len(sets))
        rows = (patcher.set_back(places) if len(places) else Change(places) for places in sets)
        for streams in runner.streams(rows):
            with torch.inference_mode():
                values += its.difference.of(streams).tolist()
                says += best_of(its.model.scores(streams, projection="lens"), 1)[0][:, 0].tolist()
            tick(len(values))
        controls = np.array(values[len(names) :]).reshape(DRAWS, len(ks))
        texts, gap = its.model.vocabulary()[0], its.value - one.value
        return tuple(
            Patched(
                k, values[at], None if abs(gap) < _NO_CHANGE else (its.value - values[at]) / gap,
                Token(says[at], texts[says[at]]),
                *((spread(controls[:, at]), missing[at]) if at < len(ks) else (None, None)),
            )
            for at, k in enumerate(names)
        )  # fmt: skip

    def _tick(self, total: int, done: int) -> None:
        self._progress("setting back", done, total, "runs")


def _predict(model: LanguageModel, tokens: Sequence[int]) -> int:
    with torch.inference_mode():
        scores = model.scores(last_streams(model, ids_of(model, list(tokens))), projection="lens")
        return int(best_of(scores, 1)[0][0, 0])


def _run(model: LanguageModel, tokens: tuple[int, ...], pair: tuple[int, int]) -> Side:
    difference = LogitDifference(model, *pair)
    last = model.reading.offset + len(tokens) - 1
    effects = direct_effects(
        model, tokens, slice(last, last + 1), lambda streams: difference.directions(streams, divided=False)
    )
    kept: dict[int, Floats] = {}
    with (
        torch.inference_mode(),
        read_coefficients(
            model, lambda layer, own: kept.update({layer: own[0].double().cpu().numpy()}), own_thread=True
        ),
    ):
        model.backbone(ids_of(model, list(tokens)))
    return Side(model, tokens, difference, effects, [kept[layer] for layer in sorted(kept)])
