"""Before and after: the same prompt with and without changed memories, side by side."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from rich.cells import cell_len
from torch import Tensor

from mnemoscope.atlas.visible import in_token
from mnemoscope.errors import InterventionError
from mnemoscope.models import Block, LanguageModel, read_blocks
from mnemoscope.tracing.contributions import SCORES
from mnemoscope.tracing.generation import Step, continuation, generate
from mnemoscope.tracing.interventions import Intervention, Interventions, check, intervene, interventions_of
from mnemoscope.tracing.prompts import Token, ids_of, prompt_tokens
from mnemoscope.tracing.reading import trace
from mnemoscope.tracing.terminal import WIDTH, Column, choose_position, fitted, layer_lines, table
from mnemoscope.tracing.trace import Trace
from mnemoscope.tracing.vocabulary import top as best_of


@dataclass(frozen=True, slots=True)
class Shift:
    """One token's probability before and after."""

    token: Token
    before: float
    after: float

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON; `change` is after less before."""
        return {**self.token.to_dict(), "before": self.before, "after": self.after, "change": self.after - self.before}


@dataclass(frozen=True, slots=True)
class Difference:
    """What changed in the model's prediction after one position.

    `shifts` are the tokens among the best of before or after, those of before first; `kl` is KL(before || after), nats.
    """

    position: int
    before: Token
    after: Token
    kl: float
    shifts: tuple[Shift, ...]

    @property
    def changed(self) -> bool:
        """Whether the top token is another."""
        return self.before.id != self.after.id

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "position": self.position,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "changed": self.changed,
            "kl": self.kl,
            "shifts": [shift.to_dict() for shift in self.shifts],
        }


@dataclass(frozen=True, slots=True)
class Generated:
    """A continuation: its steps, and their text as a whole."""

    steps: tuple[Step, ...]
    text: str

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        return {"text": self.text, "steps": [step.to_dict() for step in self.steps]}


@dataclass(frozen=True)
class Comparison:
    """Two traces of one prompt, what differs at each position, and both continuations (None where not asked for)."""

    before: Trace
    after: Trace
    differences: tuple[Difference, ...]
    generated_before: Generated | None
    generated_after: Generated | None

    @property
    def interventions(self) -> tuple[Intervention, ...]:
        """The changes that were made."""
        return self.after.interventions

    def changed_places(self) -> list[dict[str, Any]]:
        """Every layer and position where residual, update or output has another top token than before."""
        found = []
        for old_row, new_row in zip(self.before.places, self.after.places, strict=True):
            for old, new in zip(old_row, new_row, strict=True):
                moved = {
                    name: {"before": a[0].token.to_dict(), "after": b[0].token.to_dict()}
                    for name, a, b in (
                        ("residual", old.residual, new.residual), ("ffn", old.ffn, new.ffn),
                        ("output", old.output, new.output),
                    )
                    if a[0].token.id != b[0].token.id
                }  # fmt: skip
                if moved:
                    found.append({"layer": old.layer, "position": old.position, **moved})
        return found

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON, both traces included."""
        generated = (self.generated_before, self.generated_after)
        return {
            "interventions": [str(change) for change in self.interventions],
            "differences": [difference.to_dict() for difference in self.differences],
            "changed_places": self.changed_places(),
            "generation": None
            if generated[0] is None or generated[1] is None
            else {"before": generated[0].to_dict(), "after": generated[1].to_dict()},
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
        }

    def text(self, *, position: int | None = None, shown: int = 10, memories: int = 2) -> str:
        """The comparison as text of at most 118 columns; `position` as for `Trace.text`."""
        count = len(self.differences)
        chosen = choose_position(len(self.before.positions), position)
        moved = sum(difference.changed for difference in self.differences)
        lines = [
            fitted("Before and after " + ", ".join(map(str, self.interventions)), WIDTH),
            f"The top token differs after {moved} of {count} positions and at {len(self.changed_places())} of "
            f"{count * len(self.before.places)} places of the layers.",
            "",
        ]
        columns: list[Column] = [("position", "right", 8), ("token", "left", 20), ("before", "left", 24),
                                 ("after", "left", 24), ("KL", "right", 8)]  # fmt: skip
        rows = []
        for old, new, difference in zip(self.before.positions, self.after.positions, self.differences, strict=True):
            first, second = old.prediction[0], new.prediction[0]
            cells = [f"{in_token(guess.token.text)} {guess.probability:.3f}" for guess in (first, second)]
            mark = " *" if difference.changed else ""
            rows.append(
                [str(old.position), in_token(old.token.text), cells[0], cells[1] + mark, f"{difference.kl:.4f}"]
            )
        lines += [*table(columns, rows), "", f"Probabilities after position {chosen}"]
        columns = [("token", "left", 30), ("before", "right", 8), ("after", "right", 8), ("change", "right", 8)]
        ordered = sorted(self.differences[chosen].shifts, key=lambda shift: -max(shift.before, shift.after))[:shown]
        numbers = [[in_token(s.token.text), f"{s.before:.4f}", f"{s.after:.4f}", f"{s.after - s.before:+.4f}"]
                   for s in ordered]  # fmt: skip
        lines += table(columns, numbers)
        for name, generated in (("before", self.generated_before), ("after", self.generated_after)):
            if generated is not None:
                lines += ["", f"Continued {name}:", *written(generated.steps)]
        for name, one in (("Before", self.before), ("After", self.after)):
            head, *rest = layer_lines(one.positions[chosen], one.places, memories)
            lines += ["", f"{name}. {head}", *rest]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()


def written(steps: tuple[Step, ...]) -> list[str]:
    """A continuation as lines of at most 118 columns, indented."""
    lines = [""]
    for step in steps:
        token = in_token(step.token.text)
        if cell_len(lines[-1] + token) > WIDTH - 2:
            lines.append("")
        lines[-1] += token
    return [fitted(f"  {line}", WIDTH) for line in lines]


def compare(
    model: LanguageModel,
    prompt: str,
    interventions: Interventions,
    *,
    top: int = 10,
    memories: int = 10,
    tokens: int = 0,
    temperature: float = 0.0,
    seed: int = 0,
) -> Comparison:
    """The prompt's trace before and after the changes, and what differs in the model's predictions.

    `tokens` of continuation are written by each (`temperature` and `seed` as for `generate`). Raises
    InterventionError where there is nothing to change, and what `trace` and `generate` raise.
    """
    changes = interventions_of(interventions)
    if not changes:
        raise InterventionError("there is no change to compare; give at least one, such as L10.M222=0")
    check(model, changes)
    ids = ids_of(model, prompt_tokens(model, prompt))
    before = trace(model, prompt, top=top, memories=memories)
    after = trace(model, prompt, top=top, memories=memories, interventions=changes)
    streams = [_finals(model, ids, changes=own) for own in ((), changes)]
    texts = model.vocabulary()[0]
    differences = []
    for j, (kl, shares) in enumerate(_shares(model, streams[0], streams[1], top)):
        shifts = tuple(Shift(Token(id, texts[id]), p, q) for id, p, q in shares)
        first, second = (one.positions[j].prediction[0].token for one in (before, after))
        differences.append(Difference(j, first, second, kl, shifts))

    def written_with(own: tuple[Intervention, ...]) -> Generated | None:
        if not tokens:
            return None
        steps = tuple(generate(model, prompt, tokens=tokens, interventions=own, temperature=temperature, seed=seed))
        return Generated(steps, continuation(model, steps))

    return Comparison(before, after, tuple(differences), written_with(()), written_with(changes))


def _finals(model: LanguageModel, ids: Tensor, *, changes: tuple[Intervention, ...]) -> Tensor:
    """The last layer's output `[position, hidden]` at the prompt's own positions."""
    found: list[Tensor] = []

    def keep(_: int, block: Block) -> None:
        found.append(block.layer_output[0, model.beginning.length :].clone())

    with model.lock, intervene(model, changes), read_blocks(model, keep, layers=[model.sizes.layers - 1]):
        model.backbone(ids)
    return found[0]


def _shares(
    model: LanguageModel, before: Tensor, after: Tensor, count: int
) -> Iterator[tuple[float, list[tuple[int, float, float]]]]:
    """For each row: KL(before || after), and the best tokens of both with their two probabilities."""
    step = max(1, SCORES // model.sizes.vocabulary)
    for start in range(0, len(before), step):
        with torch.inference_mode():
            scores = [model.scores(rows[start : start + step], projection="lens") for rows in (before, after)]
            old, new = (one.double().log_softmax(1) for one in scores)
            kl = (old.exp() * (old - new).nan_to_num(0.0)).sum(1).clamp(min=0).tolist()
            best = torch.cat([best_of(one, count)[0] for one in scores], 1).tolist()
        for row, chosen in enumerate(best):
            ids = list(dict.fromkeys(chosen))
            shares = zip(ids, old[row, ids].exp().tolist(), new[row, ids].exp().tolist(), strict=True)
            yield kl[row], list(shares)
