"""The routes that run the model: traces with interventions, the causal check of a memory, what two models or prompts
differ in, the audit of a string.

The address is the whole state: a page is a link, and no request depends on an earlier one. The model runs in
model_worker.py, one request at a time. Without a model, `lacking` has the routes of pages that explain how to get one.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import Depends, Path, Query
from starlette.responses import Response

from mnemoscope.atlas.tables import model_words
from mnemoscope.errors import InterventionError, MnemoscopeError, ModelUnsupported, NotFinite, PromptError
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.foundation.words import CONTINUES_NOTHING
from mnemoscope.show.pages.edition import Data, Edition
from mnemoscope.show.pages.memory import TrialAddress
from mnemoscope.show.pages.model.audit import MOST, NEIGHBOURS, AuditAddress, AuditView
from mnemoscope.show.pages.model.diff import DiffAddress, DiffView
from mnemoscope.show.pages.model.edges import draw_edges
from mnemoscope.show.pages.model.trace import (
    ASKED,
    CHANGES,
    CauseAddress,
    TraceAddress,
    TraceView,
    causal_view,
    chosen_place,
    describe_memories,
    limits,
    shade,
)
from mnemoscope.show.pages.page import Page
from mnemoscope.show.pages.triggers import colour_tokens
from mnemoscope.web.middleware.error_pages import problem_page
from mnemoscope.web.page_routes import OneSite, both, new_router
from mnemoscope.web.site import Site

if TYPE_CHECKING:
    from mnemoscope.web.model_worker import ModelWorker

HOW = "start the server with a model: mnemoscope serve ATLAS --model MODEL"
router, lacking = new_router(), new_router()


async def worker_of(site: OneSite) -> "ModelWorker":
    assert site.model is not None
    return site.model


OneWorker = Annotated[Any, Depends(worker_of)]
OneMemory = Annotated[str, Path(max_length=100, description="A memory, such as L10.M222")]


@both(router, "/trace", name="trace")
def trace(site: OneSite, worker: OneWorker, wanted: Annotated[TraceAddress, Query()]) -> Page:
    """A prompt layer by layer, with and without changed memories."""
    try:
        return _trace_page(site, worker.of(wanted.of), wanted)
    except MnemoscopeError as problem:
        extra = {"asked": wanted, "limits": _limits(worker), "models": _names(site, worker), "trace": None}
        return problem_page("trace.html", "Trace", problem, extra)


@both(router, "/trace/cause", name="trace_cause")
def cause(site: OneSite, worker: OneWorker, wanted: Annotated[CauseAddress, Query()]) -> Page:
    """Which memories a prediction hangs on through all later layers: attributions, ablations, curve."""
    from mnemoscope.web.attribution_answers import attribution
    from mnemoscope.web.model_answers import page_prompt

    worker = worker.of(wanted.of).with_source(wanted.source)
    changes = _changes(worker, wanted)
    prompt = page_prompt(worker, wanted.prompt, wanted.chat, wanted.mask)
    shown = changes if wanted.view == "after" else ()
    position = wanted.position if isinstance(wanted.position, int) else None
    asked = prompt, shown, wanted.target, wanted.against, position
    answer = attribution(worker, *asked, wanted.until)
    if not worker.differs:
        answer = {**answer, "memories": describe_memories(site.edition(), answer["memories"])}
    extra = {"asked": wanted.trace, "until": wanted.until, "models": _names(site, site.model)}
    return Page(
        "cause.html", "What it hangs on", {"attribution": answer}, lambda: {**extra, "edges": draw_edges(answer)}
    )


@router.get(
    "/trace.py",
    summary="The trace as a Python script",
    operation_id="trace_script",
    responses={200: {"description": "The script", "content": {"text/x-python": {}}}},
)
def script(worker: OneWorker, wanted: Annotated[TraceAddress, Query()]) -> Response:
    from mnemoscope.web.model_answers import page_prompt, parse_changes, trace_script

    worker = worker.of(wanted.of).with_source(wanted.source)
    prompt = page_prompt(worker, wanted.prompt, wanted.chat, wanted.mask)
    text = trace_script(worker, prompt, parse_changes(worker, wanted.placed_changes))
    named = {"Content-Disposition": 'attachment; filename="trace.py"', "Cache-Control": "no-store"}
    return Response(text.encode("utf-8", "backslashreplace"), media_type="text/x-python", headers=named)


@both(router, "/{name}/causal", name="causal")
def causal(
    site: OneSite,
    worker: OneWorker,
    name: OneMemory,
    sign: Literal["1", "-1"] = "1",
) -> Page:
    """What switching a memory off does to the predictions at its own triggers."""
    from mnemoscope.web.model_answers import check_memory

    memory = site.atlas[MemoryId.parse(name)].id
    data = check_memory(worker, site.atlas, site.edition().state, memory, int(sign))
    # Link to the other sign only if it has triggers.
    turned = site.atlas[memory].triggers(sign=-int(sign)).height > 0
    title = f"{memory}: causal check"
    return Page(
        "causal.html",
        title,
        data,
        lambda: causal_view(data, worker.words, worker.model.reading.words) | {"turned": turned},
    )


@both(router, "/{name}/try", name="try")
def try_text(site: OneSite, worker: OneWorker, name: OneMemory, wanted: Annotated[TrialAddress, Query()]) -> Page:
    """A memory's coefficient at every token of a text."""
    memory = site.atlas[MemoryId.parse(name)].id
    title = f"{memory}: try a text"
    data = {"memory": str(memory), "limits": _limits(worker), "tokens": None}
    extra = {"asked": wanted, "problem": "", "coloured_tokens": []}
    if wanted.text is None:
        return Page("try.html", title, data, lambda: extra)
    from mnemoscope.web.model_answers import try_memory

    try:
        tokens = try_memory(worker.with_source(wanted.source), memory, wanted.text)
    except PromptError as problem:
        return problem_page("try.html", title, problem, data | extra)
    activity = site.edition().document(memory).activity
    extra["coloured_tokens"] = colour_tokens(tokens, max(abs(activity["max"]), abs(activity["min"])))
    return Page("try.html", title, data | {"tokens": tokens}, lambda: extra)


def _changes(worker: "ModelWorker", wanted: TraceAddress) -> tuple[str, ...]:
    from mnemoscope.web.model_answers import parse_changes

    if len(wanted.changes) > CHANGES:
        raise InterventionError(f"there are {len(wanted.changes)} changes; the page takes at most {CHANGES}")
    return parse_changes(worker, wanted.placed_changes)


def _trace_page(site: Site, worker: "ModelWorker", wanted: TraceAddress) -> Page:
    """The page of one trace."""
    from mnemoscope.web import model_answers
    from mnemoscope.web.attribution_answers import dominant_memories

    changes, edition = _changes(worker, wanted), site.edition()
    data: Data = {
        "limits": _limits(worker),
        "models": _names(site, site.model),
        "interventions": list(changes),
        "prompt": wanted.prompt,
        "chat": wanted.chat,
        "mask": wanted.mask,
        "source": wanted.source,
        "trace": None,
    }
    extra: Data = {"asked": wanted, "problem": ""}
    if wanted.prompt is None:
        return Page("trace.html", "Trace", data, lambda: extra)
    worker = worker.with_source(wanted.source)
    prompt = model_answers.page_prompt(worker, wanted.prompt, wanted.chat, wanted.mask)
    comparison = model_answers.compare_changes(worker, prompt, changes) if changes else None
    shown = changes if wanted.view == "after" else ()
    trace = comparison[wanted.view] if comparison else model_answers.trace_prompt(worker, prompt, ())
    layer, position = chosen_place(wanted, trace)
    last = tuple(guess["id"] for guess in trace["positions"][-1]["prediction"])
    data |= {
        "layer": layer,
        "position": position,
        "view": wanted.view,
        "trace": trace,
        "heat": model_answers.heat_map(worker, prompt, shown, wanted.stream),
        "following": model_answers.next_texts(worker, prompt, last),
        "comparison": None
        if comparison is None
        else {name: comparison[name] for name in ("interventions", "differences", "changed_places")},
        "generation": None,
        "python": model_answers.trace_script(worker, prompt, changes),
        "dominant": None,
        "figure1": None,
        "pushed": None,
        "difference": None,
    }
    if not worker.differs:
        peaks = [edition.peaks(of) for of in range(len(trace["layers"]))]
        data["dominant"] = dominant_memories(worker, prompt, shown, position, edition.state, peaks)
    with suppress(ModelUnsupported):  # a layer whose values do not add up
        parts = model_answers.layer_parts(worker, prompt, shown, layer, position)
        memories = parts["memories"] if worker.differs else describe_memories(edition, parts["memories"])
        data["figure1"] = {**parts, "memories": memories}
    if wanted.generate:
        before = model_answers.continue_prompt(worker, prompt, (), wanted.generate)
        after = model_answers.continue_prompt(worker, prompt, changes, wanted.generate) if changes else None
        data["generation"] = {"before": before, "after": after}
    # No link to an audit for a single token, for a chat, of what has a source, or if the model is not the mined one.
    plain = not wanted.chat and not wanted.source and trace["mask"] is None
    can = len(trace["positions"]) > 1 and not worker.differs and plain
    audit = AuditAddress(text=wanted.prompt).address() if can else ""
    other = DiffAddress(**wanted.model_dump(include=ASKED)).address()
    extra |= {"look": TraceView(wanted, data, worker.words), "shade": shade, "audit": audit, "unpushed": ""}
    extra |= {"other": other}
    try:
        data |= _direct_effects(edition, worker, prompt, wanted, changes, position)
    except PromptError as problem:
        return problem_page("trace.html", "Trace", problem, data | extra)
    except (ModelUnsupported, NotFinite) as problem:
        extra["unpushed"] = str(problem)
    return Page("trace.html", "Trace", data, lambda: extra)


def _direct_effects(
    edition: Edition,
    worker: "ModelWorker",
    prompt: str,
    wanted: TraceAddress,
    changes: tuple[str, ...],
    position: int,
) -> Data:
    """The direct effects in the model that the page shows, and F before and after the changes."""
    from mnemoscope.web.attribution_answers import attribution

    asked = wanted.target, wanted.against, position
    sides = {"before": (), "after": changes} if changes else {wanted.view: ()}
    effects = {view: attribution(worker, prompt, made, *asked, "effects") for view, made in sides.items()}
    pushed = effects[wanted.view]
    memories = pushed["memories"] if worker.differs else describe_memories(edition, pushed["memories"])
    difference = {view: one["difference"] for view, one in effects.items()} if changes else None
    return {"pushed": {**pushed, "memories": memories}, "difference": difference}


@both(router, "/diff", name="diff")
def diff(site: OneSite, worker: OneWorker, wanted: Annotated[DiffAddress, Query()]) -> Page:
    """What two models, or the model on two prompts, answer differently, and which memories make it so."""
    try:
        return _diff_page(site, worker, wanted)
    except MnemoscopeError as problem:
        return problem_page("diff.html", "Diff", problem, _diff_data(site, worker) | {"asked": wanted})


def _diff_data(site: Site, worker: "ModelWorker") -> Data:
    names = _names(site, worker)
    return {"limits": _limits(worker), "models": names, "difference": None, "generation": None}


def _names(site: Site, worker: Any) -> dict[str, str | None]:
    """What the two models are called: the mined one, also below an adapter, as in its atlas."""
    model, second = worker.model, worker.second
    mined = model.spec if worker.differs else site.atlas.manifest.model.spec
    if second is None or second.source != model.source:
        return {"first": mined, "second": second and second.spec}
    return {"first": mined, "second": second.spec.replace(model.spec, mined, 1)}


def _diff_page(site: Site, worker: "ModelWorker", wanted: DiffAddress) -> Page:
    """The page of one difference."""
    from mnemoscope.web.attribution_answers import run_difference, write_set_back
    from mnemoscope.web.model_answers import continue_prompt, page_prompt

    data, extra = _diff_data(site, worker), {"asked": wanted, "problem": "", "look": None, "shade": shade}
    if wanted.prompt is None or (wanted.other is None and worker.second is None):
        return Page("diff.html", "Diff", data, lambda: extra)
    worker = worker.with_source(wanted.source)
    prompt = page_prompt(worker, wanted.prompt, wanted.chat, wanted.mask)
    other = None if wanted.other is None else page_prompt(worker, wanted.other, wanted.chat, wanted.mask)
    asked = prompt, other, wanted.target, wanted.against
    difference = run_difference(worker, *asked, patched=wanted.until == "patched")
    if not worker.differs:
        difference = {
            **difference,
            "memories": describe_memories(site.edition(), difference["memories"], "coefficient_second"),
        }
    data["difference"], extra["look"] = difference, DiffView(wanted, difference, worker.model.sizes.layers)
    if wanted.generate:
        second = worker.second if wanted.other is None else None
        before = continue_prompt(worker, prompt, (), wanted.generate)
        after = continue_prompt(worker, other or prompt, (), wanted.generate, by=second)
        data["generation"] = {"first": before, "second": after}
        if wanted.restored and second is not None and difference["tokens"]:
            count = wanted.restored, wanted.generate
            data["generation"]["set_back"] = write_set_back(worker, prompt, wanted.target, wanted.against, *count)
    return Page("diff.html", "Diff", data, lambda: extra)


@both(router, "/audit", name="audit")
def audit(site: OneSite, worker: OneWorker, wanted: Annotated[AuditAddress, Query()]) -> Page:
    """How well the model knows a string, which memories carry it, and what switching them off does."""
    try:
        return _audit_page(site, worker, wanted)
    except MnemoscopeError as problem:
        extra = {"asked": wanted, "limits": _audit_limits(worker), "audit": None}
        return problem_page("audit.html", "Audit", problem, extra)


def _audit_page(site: Site, worker: "ModelWorker", wanted: AuditAddress) -> Page:
    """The page of one string."""
    data: Data = {"limits": _audit_limits(worker), **wanted.model_dump(), "audit": None}
    extra: Data = {"asked": wanted, "problem": ""}
    if not worker.model.reading.causal:
        raise ModelUnsupported(CONTINUES_NOTHING)
    if wanted.text is None:
        return Page("audit.html", "Audit", data, lambda: extra)
    from mnemoscope.web.model_answers import audit_script, audit_string

    given = {"alternatives": wanted.alternatives, "vary": wanted.vary, "neighbours": NEIGHBOURS}
    audited = audit_string(worker, site.atlas, site.edition().state, wanted.text, given)
    script = audit_script(worker, site.atlas, wanted.text, given)
    data |= {"linear_head": worker.model.linear_head, "audit": audited, "python": script}
    look = AuditView(audited["secrets"][0], audited["neighbours"])
    return Page("audit.html", "Audit", data, lambda: extra | {"look": look})


def _limits(worker: "ModelWorker") -> dict[str, int]:
    """Those of a prompt; and whether it may be a chat, holds a mask, and has a source."""
    from mnemoscope.web.model_answers import takes_chats

    model, chat = worker.model, takes_chats(worker)
    kinds = {"chat": chat, "mask": not model.reading.causal, "source": model.sources is not None}
    return limits(model.longest) | kinds


def _audit_limits(worker: "ModelWorker") -> dict[str, int]:
    return {name: limits(worker.model.longest)[name] for name in ("characters", "tokens")} | {"alternatives": MOST}


def _lack(name: str, heading: str, purpose: str, command: str) -> None:
    """Adds the page that is in the place of this one where there is no model. `purpose` is the reason to load one;
    `command` works without a server, with MODEL replaced by the words that open the mined model.
    """

    @both(lacking, f"/{name}", name=name)
    def explain(site: OneSite) -> Page:
        """How to have what needs a model: there is none here."""
        data = {"status": 404, "message": f"There is no model here to {heading[0].lower()}{heading[1:]} with; {HOW}."}
        spec = model_words(site.atlas.manifest.plan, otherwise=site.atlas.manifest.model.spec)
        shown = {"heading": heading, "purpose": purpose, "spec": spec, "command": command.replace("MODEL", spec)}
        return Page("without_model.html", heading, data, lambda: shown, 404)


_lack(
    "trace",
    "Trace a prompt",
    "follow a prompt through the layers, and to switch memories off",
    'mnemoscope trace MODEL "a prompt" --set L0.M0=0',
)
_lack(
    "diff",
    "Compare two answers",
    "see what two models, or one on two prompts, do differently",
    'mnemoscope diff MODEL "a prompt" --other-prompt "another prompt"',
)
_lack("audit", "Audit a string", "ask which memories carry a string", "mnemoscope audit MODEL --secrets FILE")
