"""The causal check of a memory: zero it on its own triggers, and measure what happens to the tokens that it promotes.

A trigger shows when a memory fires and its value what it promotes (paper, sections 3 and 4); both are observations.
Here the coefficient is set to zero at the trigger's last token, and the model's prediction there is compared with the
unchanged one, and with runs that zero a control of the layer instead: a memory that contributes as much there.

The memory's own tokens lose in any model, trained or not: they are what its value adds most to. Only training can make
the token that follows in the text lose as well.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from mnemoscope.atlas import Atlas
from mnemoscope.errors import InterventionError, ModelDiffers, OptionError
from mnemoscope.foundation.budget import BUDGET
from mnemoscope.foundation.formatting import Table, show_token
from mnemoscope.foundation.intervals import DRAWS, LEVELS, Floats, Z
from mnemoscope.foundation.memory_changes import Intervention
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.models import LanguageModel, overwrite_coefficients
from mnemoscope.models.object_state import whole_use
from mnemoscope.tracing.controls import contributions_of, draw_control
from mnemoscope.tracing.interventions import check
from mnemoscope.tracing.predictions import ids_of, last_streams
from mnemoscope.tracing.records import Token, plain
from mnemoscope.tracing.scoring.ranking import top
from mnemoscope.tracing.scoring.scores import folded_values, opens, require_model_of

MEASURES = tuple(
    f"{of}_{kind}" for of in ("own_tokens", "top_token", "next_token") for kind in ("probability", "log_probability")
)
_PLAIN = {name: ("log " if "log" in name else "") + f"p of {' '.join(name.split('_')[:2])}" for name in MEASURES}


@dataclass(frozen=True, repr=False)
class CausalCheck:
    """The changes from zeroing one memory on its triggers of one sign, beside memories of its layer as strong there.

    `table` has a row for each measure and `of` (memory, controls, difference): the mean change (after less before) over
    the triggers, its 95 % interval (`low`, `high`) and the `count` of triggers. Controls are averaged over the draws of
    a trigger first; `difference` is memory less controls per trigger, and its interval includes the variation between
    controls. `own` are the tokens that the value (sign -1: the negated value) ranks first. `controls` are all that were
    drawn; for `controls_missing` draws there was none.
    """

    memory: MemoryId
    sign: int
    at: str
    seed: int
    triggers: int
    controls: tuple[MemoryId, ...]
    controls_missing: int
    own: tuple[Token, ...]
    table: pl.DataFrame

    def to_dict(self) -> dict[str, Any]:
        entries = {name: plain(value) for name, value in vars(self).items()}
        last = {"own_tokens": entries.pop("own"), "rows": entries.pop("table")}
        return entries | last

    def __repr__(self) -> str:
        return f"<CausalCheck of {self.memory} on {self.triggers} triggers; print it to read it>"

    def __str__(self) -> str:
        kind = "top" if self.sign > 0 else "lowest"
        followed = int(self.table.filter(of="memory")["count"].min())  # type: ignore[arg-type]
        lines = [
            f"{self.memory} set to zero on its {kind} triggers ({self.triggers} prefixes), beside others of "
            f"layer {self.memory.layer} as strong there ({len(self.controls)} drawn, {self.controls_missing} missing)",
            "its own tokens: " + " ".join(show_token(token.text) for token in self.own),
            f"prefixes with a known next token: {followed}",
            "",
        ]
        kinds = ("memory", "controls", "difference")
        cells = {(row["measure"], row["of"]): _interval(row) for row in self.table.to_dicts()}
        rows = [[_PLAIN[measure], *(cells[measure, kind] for kind in kinds)] for measure in MEASURES]
        return "\n".join([*lines, *Table(("mean change of", *kinds), rows, (20, 31, 31, 31)).lines()])


def _interval(row: dict[str, Any]) -> str:
    if row["mean"] is None:
        return "-"
    bounds = "" if row["low"] is None else f" ({row['low']:+.4f} to {row['high']:+.4f})"
    return f"{row['mean']:+.4f}{bounds}"


@opens
@whole_use
def causal_check(
    model: LanguageModel,
    atlas: Atlas,
    memory: str | MemoryId,
    *,
    sign: int = 1,
    seed: int = 0,
    controls: int = 10,
    triggers: int = 25,
    tokens: int = 10,
    at: str = "last",
    force: bool = False,
) -> CausalCheck:
    """How the model's prediction at a memory's own triggers changes when the memory is zeroed there.

    Uses its `triggers` highest (sign 1) or lowest (sign -1) triggers, each prefix group once; of a masked model each
    sentence with the trigger's token masked, and that token in place of the next one. `at` is `last`, the trigger's own
    position, or `all` positions of its prefix. `tokens`: how many own tokens, which the value, or with
    sign -1 the negated value, ranks first; their probabilities are summed, their log-probabilities averaged. `controls`
    times per trigger another memory of the layer with an equal contribution at its last token (controls.py) is drawn by
    `seed` and zeroed alone. Intervals resample triggers (percentile bootstrap).
    """
    if sign not in (1, -1) or at not in ("last", "all") or min(controls, triggers, tokens) < 1 or seed < 0:
        raise OptionError(
            f"sign={sign}, at={at!r}, controls={controls}, triggers={triggers}, tokens={tokens}, seed={seed} is not "
            "possible; sign is 1 or -1, at is last or all, the others 1 or more (seed 0 or more)"
        )
    if not force:
        require_model_of(model, atlas)
    named = atlas[memory].id
    check(model, [Intervention(named)])
    prefixes = _prefixes(model, atlas, named, sign=sign, count=triggers)
    number = atlas.number(named)
    with torch.inference_mode():
        place = torch.tensor([number], device=model.device)
        folded = folded_values(model, named.layer, place, torch.full_like(place, sign))
        own_tokens = top(model.scorer().scores(folded), tokens)[0][0]
    generator = np.random.default_rng((seed, named.layer, number))
    changes = np.full((len(prefixes), 1 + controls, len(MEASURES)), np.nan)
    stronger = np.ones((len(prefixes), controls))
    every: set[int] = set()
    missing = 0
    for row, (given, words, following) in enumerate(prefixes):
        sizes = contributions_of(given, words, [named.layer])[named.layer][given.asked_columns[0]]
        drawn = [draw_control(sizes, number, barred=(), generator=generator) for _ in range(controls)]
        others = sorted({other for other in drawn if other is not None})
        change = _changes(given, words, following, named.layer, [number, *others], own_tokens, at=at)
        changes[row, 0] = change[0]
        for draw, other in enumerate(drawn, 1):
            if other is not None:
                changes[row, draw] = change[1 + others.index(other)]
                stronger[row, draw - 1] = sizes[number] / sizes[other]
        every |= set(others)
        missing += drawn.count(None)
    texts = model.vocabulary()[0]
    return CausalCheck(
        named,
        sign,
        at,
        seed,
        len(prefixes),
        tuple(atlas.name(named.layer, other) for other in sorted(every)),
        missing,
        tuple(Token(id, texts[id]) for id in own_tokens.tolist()),
        summarise_changes(changes, stronger, seed=seed),
    )


def _prefixes(
    model: LanguageModel, atlas: Atlas, memory: MemoryId, *, sign: int, count: int
) -> list[tuple[LanguageModel, list[int], int | None]]:
    """The model, given the source of a trigger if it reads one; the tokens up to the trigger, or the whole sentence
    with it masked; and the token that stands behind it, or there.
    """
    rows, reading = atlas[memory].triggers(sign=sign), model.reading
    if rows.height == 0:
        kind = "above" if sign > 0 else "below"
        raise InterventionError(
            f"{memory} has no trigger in {atlas.path}: its coefficient was never {kind} zero there; choose another one"
        )
    followed = rows.filter(pl.col(reading.spoken_of).is_not_null()).sort("rank", descending=True)
    following = dict(zip(followed["prefix_group"].to_list(), followed[reading.spoken_of].to_list(), strict=True))
    rows = rows.filter(pl.col("rank") == pl.col("prefix_group")).sort("rank").head(count)
    places = rows.select("sentence", "position").rows()
    prefixes, sources, pairs = atlas.prefixes(places), dict[int, list[int]](), []
    sentences = [sentence for sentence, _ in places]
    if not reading.causal:
        stored = dict(atlas.sentences(sentences, columns=["sentence", "tokens"]).rows())
        prefixes = [reading.context(np.array(stored[sentence]), position).tolist() for sentence, position in places]
    if model.sources is not None:
        sources = dict(atlas.sentences(sentences, columns=["sentence", "source_tokens"]).iter_rows())
    for rank, sentence, words in zip(rows["rank"].to_list(), sentences, prefixes, strict=True):
        if len(words) > model.longest or max(words) >= model.sizes.vocabulary:
            raise ModelDiffers(f"a trigger of {memory} cannot be read by {model.spec}; load the model that was mined")
        pairs.append((model.with_source(sources.get(sentence)), words, following.get(rank)))
    return pairs


def _changes(
    model: LanguageModel,
    words: list[int],
    following: int | None,
    layer: int,
    zeroed: list[int],
    own_tokens: Tensor,
    *,
    at: str,
) -> Floats:
    """After less before of the MEASURES, `[run, measure]`, on one trigger; each run zeroes one memory. NaN without a
    next token.
    """
    ids = ids_of(model, words)
    parts = []
    for start in range(0, len(zeroed), BUDGET.ablations):
        memories = zeroed[start : start + BUDGET.ablations]
        # The first row of every forward is unchanged.
        batch = ids.expand(len(memories) + 1, -1).contiguous()

        def zero(coefficients: Tensor, memories: list[int] = memories) -> Tensor:
            out = coefficients.clone()
            asked = model.asked_columns[0]
            columns = model.reading.own(len(words)) if at == "all" else slice(asked, asked + 1)
            for row, memory in enumerate(memories, 1):
                out[row, columns, memory] = 0
            return out

        with model.lock, torch.inference_mode(), overwrite_coefficients(model, {layer: zero}):
            scores = model.scores(last_streams(model, batch), projection="lens").double().log_softmax(1)
        ours = scores[:, own_tokens]
        then = torch.full_like(ours[:, 0], torch.nan) if following is None else scores[:, following]
        measures = (ours.exp().sum(1), ours.mean(1), ours[:, 0].exp(), ours[:, 0], then.exp(), then)
        values: Floats = torch.stack(measures, 1).cpu().numpy()
        parts.append(values[1:] - values[:1])
    return np.concatenate(parts)


def summarise_changes(changes: Floats, stronger: Floats, *, seed: int) -> pl.DataFrame:
    """The table of a check from `changes [trigger, run, measure]`, NaN where unknown; the first run is the memory's.

    Resampling one memory's triggers misses the variation between memories. The interval of a difference is therefore
    widened by the size of single controls' changes, scaled to the memory's strength: `stronger [trigger, control]`
    times the control's.
    """
    ours, each = changes[:, 0], changes[:, 1:]
    drawn = np.isfinite(each).sum(1)
    others = np.where(drawn > 0, np.nansum(each, 1) / np.maximum(drawn, 1), np.nan)
    rows: list[dict[str, Any]] = []
    for index, measure in enumerate(MEASURES):
        parts = (("memory", ours), ("controls", others), ("difference", ours - others))
        for name, values in parts:
            finite = values[:, index][np.isfinite(values[:, index])]
            alone = name == "difference" and len(finite) > 0
            size = math.sqrt(np.nanmean(np.square(each[:, :, index] * stronger))) if alone else 0.0
            rows.append({"measure": measure, "of": name, **_mean(finite, seed=seed, spread=Z * size)})
    numbers = dict.fromkeys(("mean", "low", "high"), pl.Float64)
    return pl.DataFrame(rows, schema={"measure": pl.String, "of": pl.String, **numbers, "count": pl.Int64})


def _mean(values: Floats, *, seed: int, spread: float = 0.0) -> dict[str, float | int | None]:
    """Mean and 95 % interval, widened by `spread`; None without values, and no interval for one trigger."""
    count = len(values)
    mean = float(values.mean()) if count else None
    low = high = None
    if mean is not None and count > 1:
        draws = np.random.default_rng((seed, count)).integers(0, count, (DRAWS, count))
        less, more = (float(bound) for bound in np.quantile(values[draws].mean(1), LEVELS))
        low, high = mean - math.hypot(mean - less, spread), mean + math.hypot(more - mean, spread)
    return {"mean": mean, "low": low, "high": high, "count": count}
