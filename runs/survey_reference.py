"""What an atlas should hold, from a model that is looked at from outside: the half of runs/survey.py that compares.

Shares no code with the package and knows no family. Every sentence is a full forward of its own. The coefficients of a
dense layer are what enters its down-projection. Those of experts come from probes: the module that holds them runs
again on what it was given, with a down-projection that shows one memory in each hidden entry, so router weights and an
expert's own gate are inside. How many memories a layer has, and in which experts, is taken from the atlas. The tokens
that a memory of the last layer promotes are what its coefficient, set far above and far below zero, moves most.

Triggers are compared with ties allowed: docs/definitions.md, section 3.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

TIE = 1e-5
"""Coefficients that differ by less than this, times the larger of 1 and their size, are tied."""
ROUNDING, LARGEST_TIE = 4, 5e-4
"""Where float32 itself is further from float64 in a model, this many times as much is tied, at most `LARGEST_TIE`."""
FAR = 1e4
"""A coefficient beside which the rest of the stream is nothing."""
ASKED = 10
"""Memories of the last layer that are set."""
LOWEST_RANK = 10
"""The median rank, by what setting them moves, that the values' first tokens may have. It is 0 where only a norm lies
between value and head; a norm or a gate of its own behind the layer makes it a little more. By chance it is half of the
vocabulary."""

Array = np.ndarray[Any, Any]
Experts = list[tuple[int | None, int]]


class NotCompared(Exception):
    """The reference cannot tell which of a model's modules to look at."""


@dataclass(frozen=True)
class Tables:
    """What the atlas says: one frame a layer."""

    triggers: list[pl.DataFrame]
    activity: list[pl.DataFrame]
    values: list[pl.DataFrame]
    hidden: int
    kept: int
    """Triggers of each memory and sign."""

    @classmethod
    def read(cls, atlas: Path) -> "Tables":
        def layers(table: str) -> list[pl.DataFrame]:
            return [pl.read_parquet(path) for path in sorted((atlas / table).glob("layer-*.parquet"))]

        manifest = json.loads((atlas / "manifest.json").read_text())
        hidden, kept = manifest["model"]["sizes"]["hidden"], manifest["plan"]["triggers"]
        return cls(layers("triggers"), layers("activity"), layers("values"), hidden, kept)

    def experts(self, layer: int) -> Experts:
        """The experts of a layer and how many memories each has; None is a dense layer."""
        values = self.values[layer]
        if "expert" not in values.columns:
            return [(None, values.height)]
        return [(expert, count) for expert, count in values.group_by("expert").len().sort("expert").rows()]


@dataclass
class Differences:
    tie: float = TIE
    memories: int = 0
    triggers: int = 0
    count: int = 0
    first: list[str] = field(default_factory=list)
    largest_error: float = 0.0
    value_rank: float | None = None
    """The median rank of the values' first tokens; None where no memory was set."""

    def add(self, what: str, number: int) -> None:
        if number:
            self.count += number
            self.first = [*self.first, what][:5]


@dataclass(frozen=True)
class Call:
    module: nn.Module
    given: tuple[Any, ...]
    named: dict[str, Any]
    made: Any

    def is_map(self, hidden: int) -> bool:
        return isinstance(self.made, Tensor) and self.made.shape[-1] == hidden and isinstance(self.given[0], Tensor)

    @property
    def rows(self) -> Tensor:
        """What entered, [position, entry]."""
        rows: Tensor = self.given[0].reshape(-1, self.given[0].shape[-1])
        return rows

    def again(self, hidden: int) -> Tensor:
        """What the module makes of it now, [position, hidden]."""
        made = self.module(*self.given, **self.named)
        rows: Tensor = (made if isinstance(made, Tensor) else made[0]).reshape(-1, hidden)
        return rows


class BlackBox:
    """A model, and what its layers compute on sentences that are read alone, each within `before` and `after`. An
    encoder-decoder is given the sentences as labels, with their `sources`; its decoder alone is looked at.
    """

    def __init__(
        self,
        model: Any,
        tables: Tables,
        before: Sequence[int] = (),
        after: Sequence[int] = (),
        sources: dict[tuple[int, ...], list[int]] | None = None,
    ) -> None:
        self.model, self.before, self.after, self.hidden = model, [*before], [*after], tables.hidden
        self.sources, self.seen = sources, model if sources is None else model.get_decoder()
        if sources is not None:  # the model's own code puts a token before its labels, and leaves out the last
            self.labels, self.before, self.after = (self.before, self.after), [-1, *before], []
        self.layers = [tables.experts(layer) for layer in range(len(tables.values))]
        self.stacks = self._stacks()
        self.inside = {id(each) for holder, _ in self.stacks for each in holder.modules()}

    def _stacks(self) -> list[tuple[nn.Module, Tensor]]:
        """The modules that hold and weigh routed experts, each with its stack [expert, ...] of down-projections."""
        routed = [experts for experts in self.layers if experts[0][0] is not None]
        sizes = {(len(experts), experts[0][1]) for experts in routed}
        modules, found = dict(self.seen.named_modules()), []
        for path, module in modules.items():
            own = [*module.parameters(recurse=False)]
            for count, width in sizes:
                shapes = {(self.hidden, width), (width, self.hidden)}
                stacks = [each.detach() for each in own if each.dim() == 3 and tuple(each.shape[1:]) in shapes]
                if not _holds_matrix(module):  # the matrices of all experts above one another
                    flat = [each.detach() for each in own if each.shape == (count * width, self.hidden)]
                    stacks += [each.view(count, width, self.hidden) for each in flat]
                if stacks:  # without a gate the first is that of the keys
                    found.append((modules[path.rpartition(".")[0]], stacks[-1]))
        return found

    def scores(self, sentence: Sequence[int]) -> Tensor:
        """The model's scores [position, token] of a sentence in its frame."""
        if self.sources is not None:
            before, after = self.labels
            source, target = [*before, *self.sources[tuple(sentence)], *after], [*before, *sentence, *after]
            made = self.model(input_ids=torch.tensor([source]), labels=torch.tensor([target]))
        else:
            made = self.model(input_ids=torch.tensor([[*self.before, *sentence, *self.after]]))
        scores: Tensor = made.logits[0]
        return scores

    def calls(self, sentence: Sequence[int]) -> list[Call]:
        """What runs, in order: maps into the stream, and the modules of routed experts."""
        calls: list[Call] = []

        def keep(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any], made: Any) -> None:
            copied = tuple(each.clone() if isinstance(each, Tensor) else each for each in given)
            calls.append(Call(module, copied, named, made))

        holders = {id(holder) for holder, _ in self.stacks}
        wanted = [each for each in self.seen.modules() if id(each) in holders or _holds_matrix(each)]
        handles = [each.register_forward_hook(keep, with_kwargs=True) for each in wanted]
        try:
            self.scores(sentence)
        finally:
            for handle in handles:
                handle.remove()
        return calls

    @torch.no_grad()
    def coefficients(self, sentences: Sequence[Sequence[int]]) -> list[dict[int | None, Array]]:
        """For every layer and expert [position, memory], the sentences' own positions one after another."""
        found: list[dict[int | None, list[Tensor]]] = [{expert: [] for expert, _ in each} for each in self.layers]
        for sentence in sentences:
            first, length = len(self.before), len(self.before) + len(sentence) + len(self.after)
            for layer, measured in enumerate(self._measured(self.calls(sentence))):
                for expert, rows in measured.items():
                    if len(rows) != length:
                        raise NotCompared(f"layer {layer} computes {len(rows)} rows for {length} tokens")
                    found[layer][expert].append(rows[first : first + len(sentence)])
        return [{expert: torch.cat(rows).double().numpy() for expert, rows in each.items()} for each in found]

    def _measured(self, calls: list[Call]) -> list[dict[int | None, Tensor]]:
        """The coefficients [position, memory] of every layer and expert in one forward."""
        stacks = {id(holder): stack for holder, stack in self.stacks}
        widths = {width for experts in self.layers for _, width in experts}
        maps = [each for each in calls if _holds_matrix(each.module) and each.is_map(self.hidden)]
        outside = [each for each in maps if id(each.module) not in self.inside and each.rows.shape[1] in widths]
        holders = [each for each in calls if id(each.module) in stacks]
        layers: list[dict[int | None, Tensor]] = []
        for experts in self.layers:
            layers.append({})
            if experts[0][0] is not None:
                if not holders:
                    raise NotCompared("fewer groups of experts run than there are layers of them")
                holder = holders.pop(0)
                stack, within = stacks[id(holder.module)], {id(each) for each in holder.module.modules()}
                lone = [each for each in maps if id(each.module) in within]
                downs = [stack, *(each.module.weight for each in lone)]
            for place, (expert, width) in enumerate(experts):
                if expert is not None and place < stack.shape[0]:
                    layers[-1][expert] = self._probe(holder, downs, stack[place], width)
                    continue
                shared = [] if expert is None else [each for each in lone if each.rows.shape[1] == width]
                if shared:
                    layers[-1][expert] = self._probe(holder, downs, shared[0].module.weight, width)
                else:
                    layers[-1][expert] = _take(outside, width).rows
        if outside or holders:
            raise NotCompared(f"{len(outside) + len(holders)} more maps of this width run than there are layers")
        return layers

    def _probe(self, holder: Call, downs: list[Tensor], down: Tensor, width: int) -> Tensor:
        """The coefficients [position, memory] of one expert: what comes out where its values are unit vectors."""
        kept = [each.detach().clone() for each in downs]
        try:
            for each in downs:
                each.zero_()
            rest, made = holder.again(self.hidden), []
            for start in range(0, width, self.hidden):
                shown = min(self.hidden, width - start)
                values = down if down.shape[0] == self.hidden else down.T
                values[:shown, start : start + shown] = torch.eye(shown)
                made.append((holder.again(self.hidden) - rest)[:, :shown])
                values.zero_()
        finally:
            for each, before in zip(downs, kept, strict=True):
                each.copy_(before)
        return torch.cat(made, dim=1)

    @torch.no_grad()
    def promoted(self, tables: Tables, sentence: Sequence[int]) -> list[int]:
        """For some memories of the last layer, if it is dense: the rank of the value's first token by how far the
        scores of tokens move between a coefficient far above zero and one far below."""
        [(expert, width), *_] = self.layers[-1]
        if expert is not None:
            return []
        maps = [each for each in self.calls(sentence) if _holds_matrix(each.module) and each.is_map(self.hidden)]
        last = [each.module for each in maps if each.rows.shape[1] == width][-1]
        top = dict(tables.values[-1].select("memory", pl.col("top_tokens").list.first()).rows())
        ranks = []
        for memory in range(0, width, math.ceil(width / ASKED)):
            above, below = (self._scores_with(last, sentence, memory, far) for far in (FAR, -FAR))
            moved = above - below
            ranks.append(int((moved > moved[top[memory]]).sum()))
        return ranks

    def _scores_with(self, down: nn.Module, sentence: Sequence[int], memory: int, coefficient: float) -> Tensor:
        place = len(self.before) + len(sentence) - 1

        def change(_module: nn.Module, given: Any) -> Any:
            rows = given[0].clone()
            rows.view(-1, rows.shape[-1])[place, memory] = coefficient
            return (rows, *given[1:])

        handle = down.register_forward_pre_hook(change)
        try:
            return self.scores(sentence)[place].double()
        finally:
            handle.remove()


def _holds_matrix(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.dim() == 2 and not isinstance(module, nn.Embedding)


def _take(calls: list[Call], width: int) -> Call:
    for place, call in enumerate(calls):
        if call.rows.shape[1] == width:
            return calls.pop(place)
    raise NotCompared(f"no map from {width} memories runs for a layer")


def compare(
    tables: Tables, measured: list[dict[int | None, Array]], sentences: Sequence[Sequence[int]], tie: float = TIE
) -> Differences:
    """The atlas beside coefficients that were measured on `sentences`, whose ids are their places."""
    found = Differences(tie=tie)
    place = np.array([(number, at) for number, each in enumerate(sentences) for at in range(len(each))])
    for layer, experts in enumerate(measured):
        triggers, activity = tables.triggers[layer], tables.activity[layer]
        for expert, coefficients in experts.items():
            name = f"layer {layer}" + ("" if expert is None else f", expert {expert}")
            # Where no memory of an expert has a coefficient, the token went elsewhere.
            routed = (coefficients != 0).any(axis=1) if expert is not None else np.full(len(coefficients), True)
            _compare_activity(found, name, _of(activity, expert), coefficients[routed])
            rows = _of(triggers, expert)
            for sign in (1, -1) if coefficients.min() < -tie else (1,):
                own = rows.filter(pl.col("sign") == sign).with_columns(pl.col("coefficient") * sign)
                _compare_triggers(
                    found, f"{name}, sign {sign}", own, sign * coefficients, place, sentences, tables.kept
                )
            found.add(f"{name}: signs", rows.filter((pl.col("sign") < 0) & (coefficients.min() >= -tie)).height)
            found.memories += coefficients.shape[1]
            found.triggers += rows.height
    return found


def _of(table: pl.DataFrame, expert: int | None) -> pl.DataFrame:
    if "expert" not in table.columns:
        return table
    return table.filter(pl.col("expert").eq_missing(pl.lit(expert)))


def _near(numbers: Array, tie: float) -> Array:
    return tie * np.maximum(1.0, np.abs(numbers))


def _compare_activity(found: Differences, name: str, activity: pl.DataFrame, coefficients: Array) -> None:
    count, memories = coefficients.shape
    activity = activity.sort("memory")
    if activity["memory"].to_list() != [*range(memories)]:
        found.add(f"{name}: activity has not every memory once", memories)
        return
    found.add(f"{name}: prefixes", int((activity["prefixes"].to_numpy() != count).sum()))
    surely, perhaps = (coefficients > found.tie).sum(axis=0), (coefficients > -found.tie).sum(axis=0)
    positive = activity["positive"].to_numpy()
    found.add(f"{name}: positive", int(((positive < surely) | (positive > perhaps)).sum()))
    if count:
        for column, own in (("mean", np.mean), ("min", np.min), ("max", np.max)):
            expected = own(coefficients, axis=0)
            wrong = np.abs(activity[column].to_numpy() - expected) > _near(expected, found.tie)
            found.add(f"{name}: {column} of activity", int(wrong.sum()))


def _compare_triggers(
    found: Differences,
    name: str,
    rows: pl.DataFrame,
    coefficients: Array,
    place: Array,
    sentences: Sequence[Sequence[int]],
    kept: int,
) -> None:
    """The rows of one sign, whose coefficients are turned so that the highest are wanted."""
    starts = np.flatnonzero(place[:, 1] == 0)
    best = np.maximum.reduceat(coefficients, starts)  # [sentence, memory]
    row_of = dict(zip(map(tuple, place.tolist()), range(len(place)), strict=True))
    names = ["memory", "rank", "coefficient", "sentence", "position", "token", "next_token"]
    of_memory: dict[int, list[tuple[Any, ...]]] = {memory: [] for memory in range(coefficients.shape[1])}
    for memory, *rest in rows.select(names).sort("memory", "rank").rows():
        of_memory.setdefault(memory, []).append(tuple(rest))
    for memory, own in of_memory.items():
        where = f"{name}, memory {memory}"
        if memory >= coefficients.shape[1]:
            found.add(f"{where}: no such memory", len(own))
            continue
        wanted = np.sort(best[:, memory])[::-1][:kept]
        least, most = int((wanted > found.tie).sum()), int((wanted > -found.tie).sum())
        found.add(f"{where}: {len(own)} triggers, not {least}", int(not least <= len(own) <= most))
        found.add(f"{where}: a sentence twice", len(own) - len({row[2] for row in own}))
        for place_in_list, (rank, stored, sentence, position, token, following) in enumerate(own):
            row = row_of.get((sentence, position))
            if row is None:
                found.add(f"{where}: no such prefix", 1)
                continue
            expected = coefficients[row, memory]
            error = abs(stored - expected)
            found.largest_error = max(found.largest_error, float(error / max(1.0, abs(expected))))
            near = float(_near(expected, found.tie))
            words = sentences[sentence]
            found.add(f"{where}, rank {rank}: coefficient {stored}, not {expected}", int(error > near))
            found.add(
                f"{where}, rank {rank}: lower than another of the sentence",
                int(best[sentence, memory] - expected > near),
            )
            found.add(f"{where}, rank {rank}: lower than another trigger", int(wanted[place_in_list] - expected > near))
            found.add(f"{where}: ranks", int(rank != place_in_list))
            after = words[position + 1] if position + 1 < len(words) else None
            found.add(f"{where}, rank {rank}: token", int((words[position], after) != (token, following)))


def _apart(one: dict[int | None, Array], other: dict[int | None, Array]) -> float:
    """How far two measurements of a layer are from one another, by the size of the second above 1."""
    return max(float((np.abs(one[each] - other[each]) / np.maximum(1.0, np.abs(other[each]))).max()) for each in one)


def survey(
    model: nn.Module,
    atlas: Path,
    sentences: Sequence[Sequence[int]],
    before: Sequence[int],
    after: Sequence[int],
    sources: list[list[int]] | None = None,
) -> Differences:
    """A model's atlas of `sentences`, with their `sources` if it reads pairs, beside the model."""
    tables = Tables.read(atlas)
    given = None if sources is None else dict(zip(map(tuple, sentences), sources, strict=True))
    box = BlackBox(model, tables, before, after, given)
    measured = box.coefficients(sentences)
    found = compare(tables, measured, sentences)
    ranks = box.promoted(tables, sentences[0])
    if found.count:
        if hasattr(model, "set_experts_implementation"):
            model.set_experts_implementation("eager")  # the others have no float64
        exact = BlackBox(model.double(), tables, before, after, given).coefficients(sentences)
        tie = min(LARGEST_TIE, ROUNDING * max(map(_apart, measured, exact)))
        found = compare(tables, exact, sentences, max(TIE, tie))
    if ranks:
        found.value_rank = float(np.median(ranks))
        found.add(
            f"values: the first token is at rank {found.value_rank:g} of what moves",
            int(found.value_rank > LOWEST_RANK),
        )
    return found
