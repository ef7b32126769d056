"""`attribute`: which memories made a prompt prefer one next token to another (definitions.md section 9).

In four steps: direct effects of all parts, which add up to F; attributions of all memories by one backward pass; the
largest ablated one by one, the list ordered by that, and what each ablation does to the others; F without more and more
of them beside controls, and with only a share of all memories kept. docs/cause.md shows them on real models.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, final

import numpy as np
import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.attribution.ablations import DRAWS, Ablations, Grid, Places, draw_sets, powers, rank, spread
from mnemoscope.attribution.attribution import Attribution, Curve, CurvePoint, Kept
from mnemoscope.attribution.contrast import Contrast, LogitDifference, choose_contrast
from mnemoscope.attribution.direct_effects import DirectEffects, check_head, direct_effects, limit_of
from mnemoscope.attribution.edges import NO_EDGES, read_places, strongest_edges
from mnemoscope.attribution.explanation import about_memories, origin_of
from mnemoscope.attribution.gradients import prompt_gradients
from mnemoscope.errors import NotFinite
from mnemoscope.foundation.intervals import Floats
from mnemoscope.foundation.options.chat_prompt import Prompt, options_of
from mnemoscope.foundation.options.prompt_options import AttributeOptions
from mnemoscope.foundation.progress import Progress, ignore_progress, report_to
from mnemoscope.models import LanguageModel
from mnemoscope.models.object_state import whole_use
from mnemoscope.tracing.predictions import ids_of
from mnemoscope.tracing.records import Token
from mnemoscope.tracing.scoring.scores import check_wide_numbers, opens, require_model_of

By = Literal["ablation", "attribution", "direct"]
Step = Literal["effects", "attributions", "ablations", "curve"]
STEPS: tuple[Step, ...] = ("effects", "attributions", "ablations", "curve")
SINGLES, LISTED, EDGES = AttributeOptions.singles, AttributeOptions.top, AttributeOptions.edges
OTHERS, MOST = 64, 1024
"""Random memories that are ablated beside the list; the most memories of the curve, and the most with edges, whose
number grows with the square of theirs.
"""
SHARES = (0.0, 0.01, 0.03, 0.1, 0.2, 0.4, 1.0)


@final
class Attributor:
    """One question about one prompt, answered step by step: each property is computed when it is first read. Hold the
    model (`in_use`) and its lock around them.
    """

    def __init__(
        self,
        model: LanguageModel,
        contrast: Contrast,
        *,
        singles: int = SINGLES,
        edges: int = EDGES,
        seed: int = 0,
        progress: Progress = ignore_progress,
    ) -> None:
        check_head(model)
        check_wide_numbers(model)
        self.model, self.contrast, self._most, self._edges = model, contrast, singles, edges
        self._seed, self.progress = seed, progress
        self.difference = LogitDifference(model, contrast.target, contrast.against)
        self.ids, self._words = ids_of(model, list(contrast.tokens)), list(contrast.tokens)
        self.grid = Grid.of(model, len(self._words))
        self.asked = model.reading.asked_column(self.ids[0].tolist())
        """The column."""

    @cached_property
    def effects(self) -> DirectEffects:
        columns = slice(self.asked, self.asked + 1)
        effects = direct_effects(self.model, self._words, columns, self.difference.directions, heads=True)
        if not bool(effects.parts.logit.isfinite().all()):
            raise NotFinite("the model gives NaN or infinite scores for this prompt; try --dtype float32")
        return effects

    @property
    def value(self) -> float:
        """F."""
        return float(self.effects.parts.logit[0])

    @property
    def limit(self) -> float:
        """What the sum of the parts may miss F by."""
        sizes, parts = self.effects.sizes[0], self.effects.parts
        return limit_of(self.model, self.difference.sizes(self.effects.final)[0] + sizes + parts.head[0].abs())

    @cached_property
    def direct(self) -> Floats:
        """The direct effect of every place: 0 away from the asked position."""
        return self.grid.flat(self.effects.memories, self.asked)

    @cached_property
    def _run(self) -> tuple[Floats, Floats, Floats]:
        """m_i, |m_i| norm(v_i), and m dF/dm of every place."""
        by_layer = prompt_gradients(self.model, self.ids, self.difference)
        coefficients, grid = [m for m, _ in by_layer], self.grid
        products = ((m * gradient).double() for m, gradient in by_layer)
        return grid.flat(coefficients), grid.strengths(self.model, coefficients), grid.flat(products)

    @property
    def strengths(self) -> Floats:
        """|m_i| norm(v_i) of every place."""
        return self._run[1]

    @property
    def attributions(self) -> Floats:
        """The r of every place."""
        return self._run[2]

    def everywhere(self, memory: int) -> Places:
        """The places outside the frame of a memory, counted through all layers, where it fires."""
        layer, _, number = (int(one[0]) for one in Grid(self.grid.memories, 1).split(np.array([memory])))
        columns = np.arange(self.grid.columns)[self.grid.first : self.grid.end]
        places: Places = self.grid.firsts[layer] + columns * self.grid.memories[layer] + number
        firing: Places = places[self.strengths[places] > 0]
        return firing

    def forget(self) -> None:
        """Frees the large cached arrays; they are computed again when needed."""
        for name in ("_run", "largest", "direct", "order"):
            self.__dict__.pop(name, None)

    @cached_property
    def largest(self) -> Places:
        """Every place outside the frame with r other than 0, by |r|."""
        places = np.flatnonzero(self.grid.outside & (self.attributions != 0))
        return rank(places, np.abs(self.attributions))

    @property
    def singles(self) -> tuple[Places, Floats]:
        """The places that are ablated one by one, and F less F without each."""
        return self._single_runs[:2]

    @cached_property
    def _single_runs(self) -> tuple[Places, Floats, Floats]:
        """`singles`, and the coefficients `[ablated, place]` of the first of these places without each."""
        places = self.largest[: self._most]
        with read_places(self.model, self.grid, places[: MOST if self._edges else 0]) as gather:
            return places, self._lost(places, "ablating one by one"), gather()

    def edges(self, listed: Places) -> pl.DataFrame:
        """Those that move F most, between the ablated ones of some `listed` places."""
        places, lost, without = self._single_runs
        (kept,) = np.isin(places[: without.shape[1]], listed).nonzero()
        if not len(kept):
            return NO_EDGES
        edges = places[kept], lost[kept], self._run[0], without[np.ix_(kept, kept)]
        return strongest_edges(self.model, self.grid, *edges, count=self._edges)

    @cached_property
    def _random_singles(self) -> tuple[Places, Floats]:
        generator = np.random.default_rng((self._seed, 1))
        firing = np.flatnonzero(self.grid.outside & (self.strengths > 0))
        firing = np.setdiff1d(firing, self.singles[0])
        places = generator.choice(firing, min(OTHERS, len(firing)), replace=False) if self._most else firing[:0]
        return places, self._lost(places, "ablating others")

    @property
    def spearman(self) -> tuple[float | None, float | None]:
        """Of attribution with ablation: over the list, and over random others that fire."""
        return tuple(  # type: ignore[return-value]
            rank_correlation(self.attributions[places], lost) for places, lost in (self.singles, self._random_singles)
        )

    @cached_property
    def order(self) -> Places:
        """What the curve switches off, in this order."""
        ablated, lost = self.singles
        pushing = ablated[lost > 0][np.argsort(-lost[lost > 0], kind="stable")]
        rest = self.largest[self.attributions[self.largest] > 0]
        return np.concatenate([pushing, rest[~np.isin(rest, ablated)]])

    @cached_property
    def curve(self) -> Curve:
        """F without the first of `order` together, beside draws of controls."""
        places, ks = self.order[:MOST], powers(len(self.order), MOST)
        sets, missing = draw_sets(self.grid, self.strengths, places, ks, barred=self.singles[0], seed=(self._seed, 2))
        values = self._without([*(places[:k] for k in ks), *sets], "the curve").reshape(DRAWS + 1, len(ks))
        return tuple(
            CurvePoint(k, float(values[0, at]), spread(values[1:, at]), missing[at]) for at, k in enumerate(ks)
        )

    @cached_property
    def with_a_share(self) -> tuple[Kept, ...]:
        """F with only a share of the memories outside the frame, those with the largest |r|, beside random ones."""
        every = np.flatnonzero(self.grid.outside)
        if not len(every):
            return ()
        orders = rank(every, np.abs(self.attributions)), np.random.default_rng((self._seed, 3)).permutation(every)
        counts = [round(share * len(every)) for share in SHARES]
        values = self._without([order[count:] for order in orders for count in counts], "keeping shares")
        return tuple(map(Kept, SHARES, *values.reshape(2, -1).tolist()))

    def _lost(self, places: Places, stage: str) -> Floats:
        return self.value - self._without(list(places[:, None]), stage)

    def _without(self, rows: Sequence[Places], stage: str) -> Floats:
        runner = Ablations(self.model, self.ids, self.difference, self.grid)
        return runner.run(rows, tick=lambda done: self.progress(stage, done, len(rows), "runs"))

    def summary(
        self, prompt: str, *, by: By, top: int, atlas: Atlas | None, origin: dict[str, Any], until: Step = "curve"
    ) -> Attribution:
        """The answer up to a step: what is not measured by then is null or empty. After `effects` the `top` memories
        that pushed most for, and the `top` against, are listed.
        """
        step = STEPS.index(until)
        effects, parts, texts = self.effects, self.effects.parts, self.model.vocabulary()[0]
        layers = pl.DataFrame(
            {
                "layer": range(self.model.sizes.layers),
                "attention": parts.attention[:, 0].numpy(),
                "memories": effects.by_layer[:, 0].numpy(),
                "other": parts.other[:, 0].numpy(),
            }
        )
        heads = [
            (layer, head, effect)
            for layer, by_head in enumerate(effects.heads)
            for head, effect in ([(None, None)] if by_head is None else enumerate(by_head[0].tolist()))
        ]
        target, against = self.contrast.target, self.contrast.against
        places = self._order(by, top, step)
        listed = self._table(places, step)
        return Attribution(
            self.model.spec,
            str(prompt),
            tuple(texts[token] for token in self.model.reading.frame(self._words)),
            self.contrast.position,
            Token(target, texts[target]),
            None if against is None else Token(against, texts[against]),
            self.contrast.shared,
            self.contrast.longer,
            self.value,
            float(self.difference.after_cap(effects.final)[0]),
            *self.difference.probabilities(effects.final),
            float(parts.embedding[0]),
            layers,
            float(effects.biases[0]),
            float(parts.head[0]),
            float(effects.total[0] - parts.logit[0]),
            self.limit,
            about_memories(listed, atlas, [texts[token] for token in self._words], first=self.contrast.first),
            pl.DataFrame(heads, schema={"layer": pl.Int64, "head": pl.Int64, "direct": pl.Float64}, orient="row"),
            *(self.spearman if step > 1 else (None, None)),
            self.curve if step > 2 else (),
            self.with_a_share if step > 2 else (),
            float(np.abs(self.attributions[~self.grid.outside]).sum()) if step else None,
            self.edges(places) if step > 1 else NO_EDGES,
            origin,
            self.contrast.own,
            None if self.contrast.mask is None else self.asked,
        )

    def _order(self, by: By, count: int, step: int) -> Places:
        """The places that are listed, with what is known after so many steps behind the direct effects."""
        if step == 0:
            most, least = (rank(np.flatnonzero(sign * self.direct > 0), sign * self.direct) for sign in (1, -1))
            return np.concatenate([most[:count], least[:count]])
        if step == 1 or by == "attribution":
            return self.largest[:count]
        if by == "direct":
            places = rank(np.flatnonzero(self.grid.outside & (self.direct != 0)), np.abs(self.attributions))
            return rank(places, np.abs(self.direct))[:count]
        ablated, lost = self.singles
        return np.concatenate([ablated[np.argsort(-np.abs(lost), kind="stable")], self.largest[len(ablated) :]])[:count]

    def _table(self, places: Places, step: int) -> pl.DataFrame:
        """Memory, position, coefficient, direct, attribution and ablation, null where it was not measured."""
        coefficients = self._run[0] if step else self.grid.flat(self.effects.coefficients, self.asked)
        lost = dict(zip(*(each.tolist() for each in self.singles), strict=True)) if step > 1 else {}
        return pl.DataFrame(
            {
                **self.grid.names(self.model, places),
                "coefficient": coefficients[places].astype(np.float64),
                "direct": self.direct[places],
                "attribution": pl.Series(self.attributions[places] if step else [None] * len(places), dtype=pl.Float64),
                "ablation": pl.Series([lost.get(place) for place in places.tolist()], dtype=pl.Float64),
            },
            schema_overrides={"memory": pl.String, "position": pl.Int64},
        )


def rank_correlation(one: Floats, other: Floats) -> float | None:
    """Spearman's; None for fewer than three pairs, or where one does not vary."""
    rho = pl.select(pl.corr(pl.Series(one), pl.Series(other), method="spearman")).item() if len(one) > 2 else None
    return None if rho is None or math.isnan(rho) else float(rho)


@opens
@whole_use
def attribute(
    model: LanguageModel,
    prompt: Prompt,
    *,
    source: str | None = None,
    target: str | None = None,
    against: str | None = None,
    position: int | None = None,
    mask: int | None = None,
    by: By = "ablation",
    singles: int = 128,
    top: int = 128,
    edges: int = 1_000,
    atlas: Atlas | None = None,
    seed: int = 0,
    progress: bool | Progress = True,
) -> Attribution:
    """Which memories made the model prefer `target` to `against` after a position of the prompt, or at a masked model's
    mask. Both are the next word as text, with its space. Definitions: definitions.md section 9.

    Raises PromptError, OptionError, ModelUnsupported, ModelDiffers, NotFinite.

    Args:
        model: A LanguageModel, or a name that `load_model` takes.
        prompt: Plain text, read as mining reads a sentence, or the messages of a chat.
        source: What an encoder-decoder reads; the prompt is its text so far.
        target: The next word asked about, with its space; None: the model's own prediction.
        against: The word it is compared with; None: the next best; "mean": the mean of all tokens.
        position: The position whose next token is asked about; None: the last; below 0 from the end.
        mask: The own token that a masked model does not see; None: the prompt holds the mask token, once.
        by: The order of the list: ablation, attribution or direct, by size.
        singles: Memories switched off one by one.
        top: Memories listed.
        edges: Pairs of ablated memories listed, of which one feeds the other; `mnemoscope.write_graph` draws them.
        atlas: An atlas of this model: labels, promoted tokens, triggers; or its folder.
        seed: Of the controls.
        progress: True: a bar in a terminal or notebook; or a function of stage, done, total (or None) and note.
    """
    AttributeOptions.check(locals())
    if atlas is not None:
        require_model_of(model, atlas)
    model = model.with_source(source)
    prompt = model.prompt_text(prompt, mask=mask)
    with model.lock, report_to(progress) as report:
        contrast = choose_contrast(model, prompt, target=target, against=against, position=position)
        asked = Attributor(model, contrast, singles=singles, edges=edges, seed=seed, progress=report)
        origin = origin_of(
            model.fingerprint,
            atlas,
            seed,
            **options_of(prompt),
            **({"source": model.given_source} if model.given_source else {}),
            target=target,
            against=against,
            position=position,
            by=by,
            singles=singles,
            top=top,
            edges=edges,
        )
        return asked.summary(prompt, by=by, top=top, atlas=atlas, origin=origin)
