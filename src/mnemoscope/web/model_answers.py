"""The model's results for pages as plain data: traces, heat maps, comparisons, continuations, checks, audits.

Every result goes through `ModelWorker.answer` under a key of everything it depends on, including the changes. The room
`tracing` computes the numbers; only the heat map's are computed here, from the same run.
"""

from collections.abc import Mapping
from typing import Any

import torch

from mnemoscope.atlas import Atlas
from mnemoscope.auditing import AuditOptions, audit
from mnemoscope.auditing.audit import as_python as audit_as_python
from mnemoscope.auditing.audit import string_tokens
from mnemoscope.errors import MemoryIdError, ModelUnsupported, OptionError, PromptError
from mnemoscope.foundation.memory_changes import counted_from
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.foundation.options.chat_prompt import ChatPrompt, first_position, own_tokens
from mnemoscope.models import LanguageModel
from mnemoscope.models.forward.hooks import read_coefficients
from mnemoscope.models.object_state import hold_model
from mnemoscope.models.tokens.chat_reader import chat_template
from mnemoscope.show.pages.edition import Data
from mnemoscope.show.pages.model.trace import TOKENS
from mnemoscope.tracing import Intervention, as_python, causal_check, compare, generate, intervene, rank_of, top, trace
from mnemoscope.tracing.interventions import check
from mnemoscope.tracing.layer_sum import layer_sum
from mnemoscope.tracing.predictions import continuation, ids_of
from mnemoscope.tracing.scoring.scores import split_rows
from mnemoscope.tracing.trace import run_blocks
from mnemoscope.web.model_worker import Cancelled, ModelWorker, stop_if

Changes = tuple[str, ...]
TOP = 10


def count_changes(prompt: str, changes: Changes) -> tuple[Intervention, ...]:
    """The changes of a prompt, which count its positions, for `intervene`, which counts all tokens."""
    return counted_from(map(Intervention.parse, changes), first_position(prompt))


def page_prompt(worker: ModelWorker, text: str | None, chat: bool, mask: int | str | None = None) -> str:
    """A page's text as a prompt: with `chat` what a user says; `mask` is the token that a masked model does not see."""
    if not text:
        raise PromptError("the prompt is empty; write at least one word")
    try:
        asked = [{"role": "user", "content": text}] if chat else text
        return worker.model.prompt_text(asked, mask=mask if isinstance(mask, int) else None)
    except (ModelUnsupported, OptionError) as problem:
        raise PromptError(str(problem)) from None  # what was asked for is at fault


def takes_chats(worker: ModelWorker) -> bool:
    return bool(chat_template(worker.model.reader))


def asked_position(prompt: str, position: int | None) -> int | None:
    """A position of a table, for functions to which one below 0 counts from the end of what was written."""
    return position if position is None or position >= 0 else position - (own_tokens(prompt) or 0)


def parse_changes(worker: ModelWorker, texts: Changes) -> Changes:
    """The changes in Mnemoscope's notation."""
    changes = tuple(Intervention.parse(text) for text in texts)
    check(worker.model, changes)
    return tuple(map(str, changes))


def trace_prompt(worker: ModelWorker, prompt: str, changes: Changes) -> Data:
    """As `Trace.to_dict`."""

    def make(model: LanguageModel, _: Cancelled) -> Data:
        read_prompt(model, prompt)
        return trace(model, prompt, top=TOP, memories=TOP, interventions=changes).to_dict()

    return worker.answer(("trace", prompt, changes), make, places=_count_places)


def compare_changes(worker: ModelWorker, prompt: str, changes: Changes) -> Data:
    """As `Comparison.to_dict`, without continuations."""

    def make(model: LanguageModel, _: Cancelled) -> Data:
        read_prompt(model, prompt)
        return compare(model, prompt, changes, top=TOP, memories=TOP).to_dict()

    return worker.answer(("compare", prompt, changes), make, places=lambda both: 2 * _count_places(both["after"]))


def heat_map(worker: ModelWorker, prompt: str, changes: Changes, stream: str) -> Data:
    """Probability and rank of each position's final prediction in one stream, each `[layer][position]`."""

    def make(model: LanguageModel, _: Cancelled) -> Data:
        tokens = read_prompt(model, prompt)
        ranks: list[int] = []
        shares: list[float] = []
        with hold_model(model), model.lock, torch.inference_mode(), intervene(model, count_changes(prompt, changes)):
            blocks, last = run_blocks(model, tokens)
            ends = split_rows(model, last)
            final = torch.cat([top(model.scores(end, projection="lens"), 1)[0][:, 0] for end in ends])
            rows = split_rows(model, torch.cat([getattr(block, stream).to(model.device) for block in blocks]))
            for row, finals in zip(rows, split_rows(model, final.repeat(len(blocks))), strict=True):
                scores = model.scores(row, projection="lens")
                ranks += rank_of(scores, finals).tolist()
                terms = (scores - scores.amax(1, keepdim=True)).exp()
                shares += (terms.gather(1, finals[:, None])[:, 0] / terms.sum(1)).tolist()
        lines = [slice(start, start + len(tokens)) for start in range(0, len(ranks), len(tokens))]
        return {
            "stream": stream,
            "probability": [shares[line] for line in lines],
            "rank": [ranks[line] for line in lines],
        }

    return worker.answer(("heat", prompt, changes, stream), make)


def continue_prompt(
    worker: ModelWorker, prompt: str, changes: Changes, tokens: int, *, by: LanguageModel | None = None
) -> Data:
    """A continuation: its text, its steps, and the text `joined` to the prompt, None if that reads as other tokens. The
    second model writes if it is given as `by`.
    """
    if not worker.model.reading.causal:
        raise PromptError("a model that predicts masked tokens continues no text; ask for one at a mask")

    def make(model: LanguageModel, cancelled: Cancelled) -> Data:
        prompted = read_prompt(model, prompt)
        steps = []
        for step in generate(by or model, prompt, tokens=tokens, interventions=changes, cached=True):
            steps.append(step)
            if cancelled():
                raise TimeoutError
        return {
            "text": continuation(model, tuple(steps)),
            "joined": _join(worker, prompt, prompted, [step.token.id for step in steps]),
            "steps": [step.to_dict() for step in steps],
        }

    return worker.answer(("written", prompt, changes, tokens, by is None), make)


def layer_parts(worker: ModelWorker, prompt: str, changes: Changes, layer: int, position: int) -> dict[str, Any]:
    """As `layer_sum`."""

    def make(model: LanguageModel, _: Cancelled) -> dict[str, Any]:
        read_prompt(model, prompt)
        return layer_sum(model, prompt, layer, position=asked_position(prompt, position), interventions=changes)

    return worker.answer(("figure1", prompt, changes, layer, position), make)


def next_texts(worker: ModelWorker, prompt: str, ids: tuple[int, ...]) -> list[str | None]:
    """For each token the prompt extended by it, None if the extended text would be read as other tokens."""

    def make(model: LanguageModel, _: Cancelled) -> list[str | None]:
        prompted = read_prompt(model, prompt)
        if not model.reading.causal:
            return [None] * len(ids)
        return [_join(worker, prompt, prompted, [id]) for id in ids]

    return worker.answer(("following", prompt, ids), make)


def check_memory(worker: ModelWorker, atlas: Atlas, hash: str, memory: MemoryId, sign: int) -> Data:
    return worker.answer(
        ("causal", hash, memory, sign),
        lambda model, _: causal_check(model, atlas, memory, sign=sign, force=bool(worker.differs)).to_dict(),
    )


def try_memory(worker: ModelWorker, memory: MemoryId, text: str) -> list[Data]:
    """The text's tokens (`token`, `text`) with the memory's coefficient at each, from one forward."""

    def make(model: LanguageModel, _: Cancelled) -> list[Data]:
        tokens, measured = read_prompt(model, text), list[float]()
        number = model.numbering(memory.layer).number(memory)
        if number is None:
            raise MemoryIdError(f"{memory} is not in {worker.spec}")

        def read(_: int, coefficients: torch.Tensor) -> None:
            measured.extend(coefficients[0, model.reading.own(len(tokens)), number].tolist())

        reading = read_coefficients(model, read, layers=[memory.layer])
        with hold_model(model), model.lock, torch.inference_mode(), reading:
            model.backbone(ids_of(model, tokens), stop_after=memory.layer)
        rows = zip(tokens, worker.words.split_text(tokens), measured, strict=True)
        return [{"token": token, "text": piece, "coefficient": coefficient} for token, piece, coefficient in rows]

    return worker.answer(("try", memory, text), make, places=len)


def audit_string(worker: ModelWorker, atlas: Atlas, hash: str, text: str, given: Mapping[str, Any]) -> Data:
    """As `Audit.to_dict`; `given` are fields of AuditOptions."""
    options = AuditOptions(**given)

    def make(model: LanguageModel, cancelled: Cancelled) -> Data:
        _refuse_long("string", len(string_tokens(model, text)))
        return audit(model, [text], atlas=atlas, progress=stop_if(cancelled), **vars(options)).to_dict()

    return worker.answer(("audit", hash, text, options), make)


def audit_script(worker: ModelWorker, atlas: Atlas, text: str, given: Mapping[str, Any]) -> str:
    options = AuditOptions(**given)
    return audit_as_python(worker.spec, text, options, atlas=atlas.path, opening=worker.model.opening.for_display())


def trace_script(worker: ModelWorker, prompt: str, changes: Changes) -> str:
    source, opening = worker.model.given_source or None, worker.model.opening.for_display()
    return as_python(worker.spec, prompt, changes, source=source, opening=opening)


def _count_places(traced: Data) -> int:
    return len(traced["layers"]) * len(traced["positions"])


def read_prompt(model: LanguageModel, prompt: str) -> list[int]:
    tokens = model.prompt_tokens(prompt)
    _refuse_long("prompt", len(tokens))
    _refuse_long("source", len(model.reading.given or ()))
    return tokens


def _refuse_long(noun: str, tokens: int) -> None:
    if tokens > TOKENS:
        raise PromptError(f"the {noun} has {tokens:,} tokens; the page takes at most {TOKENS}: shorten it")


def _join(worker: ModelWorker, prompt: str, prompted: list[int], ids: list[int]) -> str | None:
    """The text of the tokens `ids`, if prompt and text together are read as the tokens `prompted` and these; None for a
    chat, whose last message they are not in.
    """
    if isinstance(prompt, ChatPrompt):
        return None
    try:
        text = b"".join(worker.words.raw[id] for id in ids).decode()
        read = worker.model.tokens_after(prompt, text) if text else []
    except (UnicodeDecodeError, PromptError):
        return None
    return text if text and read == ids and len(prompted) + len(ids) <= worker.model.longest else None
