"""Before and after: the same prompt with and without changed memories, side by side."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.cells import cell_len
from torch import Tensor

from mnemoscope.errors import InterventionError
from mnemoscope.foundation.formatting import Table, show_token
from mnemoscope.foundation.memory_changes import Intervention, Interventions, counted_from, interventions_of
from mnemoscope.foundation.options.chat_prompt import Prompt
from mnemoscope.foundation.origin import Result
from mnemoscope.models import LanguageModel
from mnemoscope.models.object_state import whole_use
from mnemoscope.tracing.block_predictions import STREAMS
from mnemoscope.tracing.interventions import check, intervene
from mnemoscope.tracing.predictions import Step, continuation, generate
from mnemoscope.tracing.records import Record, Token, plain
from mnemoscope.tracing.rendering import WIDTH, cells_at, layer_lines, prediction_text
from mnemoscope.tracing.scoring.ranking import top as best_of
from mnemoscope.tracing.scoring.scores import opens, split_rows
from mnemoscope.tracing.trace import Trace, run_blocks, trace


@dataclass(frozen=True, slots=True)
class Shift(Record):
    """One token's probability before and after; `change` is after less before."""

    spread = "token"

    token: Token
    before: float
    after: float
    change: float


@dataclass(frozen=True, slots=True)
class Difference(Record):
    """The change in the model's prediction after one position; `changed`: the top token differs.

    `shifts` are the best tokens of before and after, those of before first; `kl` is KL(before || after), nats.
    """

    position: int
    before: Token
    after: Token
    changed: bool
    kl: float
    shifts: tuple[Shift, ...]


@dataclass(frozen=True, slots=True)
class Generated(Record):
    text: str
    steps: tuple[Step, ...]


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """Two traces of one prompt, the difference at each position, and both continuations (None if not requested)."""

    before: Trace
    after: Trace
    differences: tuple[Difference, ...]
    generated_before: Generated | None
    generated_after: Generated | None
    made_by: Mapping[str, Any] = field(default_factory=dict)

    @property
    def interventions(self) -> tuple[Intervention, ...]:
        return self.after.interventions

    def changed_places(self) -> list[dict[str, Any]]:
        """Every layer and position where residual, update or output has another top token than before."""
        places = []
        for old_row, new_row in zip(self.before.places, self.after.places, strict=True):
            for old, new in zip(old_row, new_row, strict=True):
                tops = {name: [getattr(state, name)[0].token for state in (old, new)] for name in STREAMS}
                moved = {
                    name: {"before": before.to_dict(), "after": after.to_dict()}
                    for name, (before, after) in tops.items()
                    if before.id != after.id
                }
                if moved:
                    places.append({"layer": old.layer, "position": old.position, **moved})
        return places

    def to_dict(self) -> dict[str, Any]:
        generated = {"before": self.generated_before, "after": self.generated_after}
        generation = {name: one.to_dict() for name, one in generated.items() if one is not None}
        return {
            "interventions": list(map(str, self.interventions)),
            "differences": plain(self.differences),
            "changed_places": self.changed_places(),
            "generation": generation or None,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "made_by": dict(self.made_by),
        }

    def text(self, *, position: int | None = None, shown: int = 10, memories: int = 2) -> str:
        """The comparison as text, with so many probabilities (`shown`) and memories; `position` as for `Trace.text`."""
        count = len(self.differences)
        index = self.before.index_of(position)
        at = self.before.positions[index].position
        moved = sum(difference.changed for difference in self.differences)
        lines = [
            "Before and after " + ", ".join(map(str, self.interventions)),
            f"The top token differs {self.before.where} {moved} of {count} positions and at"
            f" {len(self.changed_places())} of {count * len(self.before.places)} places of the layers.",
            "",
        ]
        rows = []
        for old, new, difference in zip(self.before.positions, self.after.positions, self.differences, strict=True):
            first, second = (prediction_text(at.prediction[0]) for at in (old, new))
            mark = " *" if difference.changed else ""
            about = cells_at(old.position, old.token.text, self.before.own)
            rows.append([*about, first, second + mark, f"{difference.kl:.4f}"])
        lines += Table((">position", "token", "before", "after", ">KL"), rows, (8, 20, 24, 24, 8)).lines()
        lines += ["", f"Probabilities {self.before.where} position {at}"]
        ordered = sorted(self.differences[index].shifts, key=lambda shift: -max(shift.before, shift.after))[:shown]
        rows = [[show_token(s.token.text), f"{s.before:.4f}", f"{s.after:.4f}", f"{s.change:+.4f}"] for s in ordered]
        lines += Table(("token", ">before", ">after", ">change"), rows, (30, 8, 8, 8)).lines()
        for name, generated in (("before", self.generated_before), ("after", self.generated_after)):
            if generated is not None:
                lines += ["", f"Continued {name}:", *continuation_lines(generated.steps)]
        for name, one in (("Before", self.before), ("After", self.after)):
            head, *rest = layer_lines(one.positions[index], one.places, memories, where=one.where)
            lines += ["", f"{name}. {head}", *rest]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Comparison of {self.before!r} and {self.after!r}>"

    def __str__(self) -> str:
        return self.text()


def continuation_lines(steps: tuple[Step, ...]) -> list[str]:
    lines = [""]
    for step in steps:
        token = show_token(step.token.text)
        if lines[-1] and cell_len(lines[-1] + token) > WIDTH - 2:
            lines.append("")
        lines[-1] += token
    return [f"  {line}" for line in lines]


@opens
@whole_use
def compare(
    model: LanguageModel,
    prompt: Prompt,
    interventions: Interventions,
    *,
    top: int = 10,
    memories: int = 10,
    tokens: int = 0,
    temperature: float = 0.0,
    seed: int = 0,
) -> Comparison:
    """The prompt's trace before and after the changes, and the differences in the model's predictions.

    `tokens`: the length of each continuation (`temperature` and `seed` as for `generate`). Raises InterventionError
    without a change, and the errors of `trace` and `generate`.
    """
    changes = interventions_of(interventions, of=model)
    if not changes:
        raise InterventionError("there is no change to compare; give at least one, such as L10.M222=0")
    check(model, changes)
    prompt = model.prompt_text(prompt)
    own_tokens = model.prompt_tokens(prompt)
    before, after = (trace(model, prompt, top=top, memories=memories, interventions=made) for made in ((), changes))
    streams = []
    for made in ((), changes):
        with model.lock, torch.inference_mode(), intervene(model, counted_from(made, before.positions[0].position)):
            streams.append(run_blocks(model, own_tokens)[1])
    texts = model.vocabulary()[0]
    differences = []
    for j, (kl, shares) in enumerate(compare_streams(model, streams[0], streams[1], top)):
        shifts = tuple(Shift(Token(id, texts[id]), p, q, q - p) for id, p, q in shares)
        first, second = (one.positions[j].prediction[0].token for one in (before, after))
        differences.append(Difference(before.positions[j].position, first, second, first.id != second.id, kl, shifts))

    def write(made: tuple[Intervention, ...]) -> Generated | None:
        if not tokens:
            return None
        steps = tuple(generate(model, prompt, tokens=tokens, interventions=made, temperature=temperature, seed=seed))
        return Generated(continuation(model, steps), steps)

    asked = {**after.made_by["options"], "tokens": tokens, "temperature": temperature}
    origin = {**after.made_by, "options": asked, "seed": seed}
    return Comparison(before, after, tuple(differences), write(()), write(changes), origin)


def compare_streams(
    model: LanguageModel, before: Tensor, after: Tensor, count: int
) -> Iterator[tuple[float, list[tuple[int, float, float]]]]:
    """Per row KL(before || after), and the best tokens of both with their two probabilities."""
    for parts in zip(split_rows(model, before), split_rows(model, after), strict=True):
        with torch.inference_mode():
            scores = [model.scores(rows, projection="lens") for rows in parts]
            old, new = (one.double().log_softmax(1) for one in scores)
            kl = (old.exp() * (old - new).nan_to_num(0.0)).sum(1).clamp(min=0).tolist()
            best = torch.cat([best_of(one, count)[0] for one in scores], 1).tolist()
        for row, tokens in enumerate(best):
            ids = list(dict.fromkeys(tokens))
            shares = zip(ids, old[row, ids].exp().tolist(), new[row, ids].exp().tolist(), strict=True)
            yield kl[row], list(shares)
