"""Who pushed a prediction, as plain data for pages: attribution step by step, dominance by memory, and what two runs
differ in.

The two tokens compared are chosen in the model without changes, so F before and after changes is of the same pair.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from mnemoscope.attribution.attribute import LISTED, Attributor, Step
from mnemoscope.attribution.contrast import choose_contrast
from mnemoscope.attribution.diff import Differ, Parting
from mnemoscope.attribution.direct_effects import check_head
from mnemoscope.foundation.options.chat_prompt import as_written, first_position, options_of
from mnemoscope.foundation.origin import made_by
from mnemoscope.models import LanguageModel
from mnemoscope.models.object_state import hold_model
from mnemoscope.models.weight_changes import weight_changes
from mnemoscope.show.pages.edition import Data, Peaks
from mnemoscope.show.pages.model.trace import PUSHING
from mnemoscope.tracing import intervene
from mnemoscope.tracing.scoring.scores import check_wide_numbers, vote_codes, votes
from mnemoscope.tracing.trace import run_blocks
from mnemoscope.web.model_answers import TOP, Changes, asked_position, count_changes, read_prompt
from mnemoscope.web.model_worker import CACHED_BYTES, Cancelled, ModelWorker, stop_if


def attribution(
    worker: ModelWorker,
    prompt: str,
    changes: Changes,
    target: str | None,
    against: str | None,
    position: int | None,
    until: Step,
) -> Data:
    """As `Attribution.to_dict`, up to a step; all but the first are done aside. A masked model is asked at its mask."""
    position = position if worker.model.reading.causal else None
    asked = prompt, changes, target, against, position

    def ask(model: LanguageModel, _: Cancelled) -> Attributor:
        read_prompt(model, prompt)
        check_head(model)
        check_wide_numbers(model)
        place = asked_position(prompt, position)
        with hold_model(model), model.lock:
            return Attributor(model, choose_contrast(model, prompt, target=target, against=against, position=place))

    def make(model: LanguageModel, cancelled: Cancelled) -> Data:
        options = options_of(prompt) | {"target": target, "against": against, "position": position, "changes": changes}
        options |= {"source": model.given_source} if model.given_source else {}
        origin = made_by(model=model.fingerprint, atlas=None, options=options, seed=0)
        attributor.progress, top = stop_if(cancelled), PUSHING if until == "effects" else LISTED
        try:
            with hold_model(model), model.lock, intervene(model, count_changes(prompt, changes)):
                answer = attributor.summary(prompt, by="ablation", top=top, atlas=None, origin=origin, until=until)
        finally:
            attributor.forget()
        return answer.to_dict()

    attributor = worker.answer(
        ("attributor", *asked), ask, places=lambda one: sum(one.grid.memories) * 12 // CACHED_BYTES
    )
    return worker.answer(("attribution", *asked, until), make, aside=until != "effects")


def run_difference(
    worker: ModelWorker, prompt: str, other: str | None, target: str | None, against: str | None, *, patched: bool
) -> Data:
    """As `RunDifference.to_dict`, between the two models, or the model on two prompts; setting memories back
    (`patched`) is done aside. The changes of weights are no prompt's, and are asked for once.
    """
    second = worker.model if worker.second is None or other is not None else worker.second
    asked = prompt, other, target, against

    def find(model: LanguageModel, cancelled: Cancelled) -> Parting:
        for text in (prompt, other):
            if text is not None:
                read_prompt(model, text)
        with Differ(model, second, progress=stop_if(cancelled)) as differ:
            return differ.find_parting(*asked)

    def make(model: LanguageModel, cancelled: Cancelled) -> Data:
        written = {**options_of(prompt), "other_prompt": as_written(other)}
        options = {**written, "target": target, "against": against}
        options |= {"source": model.given_source} if model.given_source else {}
        origin = made_by(model=[model.fingerprint, second.fingerprint], atlas=None, options=options, seed=0)
        with Differ(model, second, progress=stop_if(cancelled)) as differ:
            answer = differ.explain(parting, both=True, top=LISTED, patched=patched)
        return replace(answer, made_by=origin).to_dict()

    def compare(model: LanguageModel, cancelled: Cancelled) -> list[Data]:
        with Differ(model, second, progress=stop_if(cancelled)):
            return weight_changes(model, second).to_dicts()

    parting = worker.answer(("parting", *asked), find)
    weights = [] if second is worker.model else worker.answer(("weights",), compare, sourced=False)
    return {**worker.answer(("difference", *asked, patched), make, aside=patched), "weights": weights}


def write_set_back(
    worker: ModelWorker, prompt: str, target: str | None, against: str | None, restored: int, tokens: int
) -> Data:
    """As the last of `RunDifference.written`."""

    def make(model: LanguageModel, cancelled: Cancelled) -> Data:
        with Differ(model, worker.second or model, progress=stop_if(cancelled)) as differ:
            parting = differ.find_parting(prompt, None, target, against)
            listed = differ.explain(parting, both=False, top=restored, patched=False)
            return differ.write(parting, listed.towards(restored), tokens)[-1].to_dict()

    return worker.answer(("set back", prompt, target, against, restored, tokens), make, aside=True)


def dominant_memories(
    worker: ModelWorker, prompt: str, changes: Changes, position: int, state: str, peaks: Sequence[Peaks | None]
) -> list[list[Data] | None]:
    """By layer the memories whose coefficients come closest to their own extremes of that sign, `peaks`, and their
    votes; None for a layer without. `state` is that of the peaks.
    """

    def make(model: LanguageModel, _: Cancelled) -> list[list[Data] | None]:
        texts, nothing = model.vocabulary()[0], torch.zeros(0, dtype=torch.int64)
        with hold_model(model), model.lock, torch.inference_mode(), intervene(model, count_changes(prompt, changes)):
            blocks, _final = run_blocks(model, read_prompt(model, prompt))
            here = [block.coefficients[position - first_position(prompt)].double().cpu() for block in blocks]
            shares = [None if peak is None else _own_shares(m, *peak) for m, peak in zip(here, peaks, strict=True)]
            best = [nothing if share is None else share.argsort(descending=True, stable=True)[:TOP] for share in shares]
            voted = votes(model, [vote_codes(at, m[at]) for at, m in zip(best, here, strict=True)])
        return [
            None
            if share is None
            else [
                {
                    "memory": str(model.numbering(layer).name(layer, at)),
                    "sign": 1 if m[at] > 0 else -1,
                    "coefficient": float(m[at]),
                    "own_share": float(share[at]),
                    "vote": {"id": vote, "text": texts[vote]},
                }
                for at, vote in zip(best[layer].tolist(), voted[layer].tolist(), strict=True)
                if share[at] > 0
            ]
            for layer, (m, share) in enumerate(zip(here, shares, strict=True))
        ]

    return worker.answer(("dominant", prompt, changes, position, state), make, places=len)


def _own_shares(coefficients: torch.Tensor, highest: Any, lowest: Any) -> torch.Tensor:
    extreme = torch.where(coefficients > 0, torch.tensor(highest), -torch.tensor(lowest))
    return torch.where(extreme > 0, coefficients.abs() / extreme, 0.0)
