"""The route that audits one string: how well the model knows it, and which memories carry it.

Like a trace, the page is a function of its address, runs in the worker's queue, and needs a model.
"""

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Query

from mnemoscope.errors import MnemoscopeError
from mnemoscope.show.pages.audit import MOST, NEIGHBOURS, AuditAddress, AuditView
from mnemoscope.show.pages.page import Page
from mnemoscope.show.pages.trace import PROMPT, TOKENS
from mnemoscope.web.error_pages import problem_page
from mnemoscope.web.page_routes import OneSite, both, new_router
from mnemoscope.web.routes.trace import OneWorker
from mnemoscope.web.site import Site

if TYPE_CHECKING:
    from mnemoscope.web.model_worker import ModelWorker

router = new_router()


@both(router, "/audit", name="audit")
def audit(site: OneSite, worker: OneWorker, wanted: Annotated[AuditAddress, Query()]) -> Page:
    """How well the model knows a string, which memories carry it, and what switching them off does."""
    try:
        return _audit_page(site, worker, wanted)
    except MnemoscopeError as problem:
        extra = {"asked": wanted, "limits": _limits(worker), "audit": None}
        return problem_page("audit.html", "Audit", problem, extra)


def _audit_page(site: Site, worker: "ModelWorker", wanted: AuditAddress) -> Page:
    """The page of one string. Raises PromptError, and what the audit raises."""
    data: dict[str, Any] = {"limits": _limits(worker), **wanted.model_dump(), "audit": None}
    extra: dict[str, Any] = {"asked": wanted, "problem": ""}
    if wanted.text is None:
        return Page("audit.html", "Audit", data, lambda: extra)
    from mnemoscope.web.model_answers import audit_script, audit_string

    given = {"alternatives": wanted.alternatives, "vary": wanted.vary, "neighbours": NEIGHBOURS}
    audited = audit_string(worker, site.atlas, site.edition().state, wanted.text, given)
    data |= {
        "linear_head": worker.model.linear_head,
        "audit": audited,
        "python": audit_script(worker, site.atlas, wanted.text, given),
    }
    look = AuditView(audited["secrets"][0], audited["neighbours"])
    return Page("audit.html", "Audit", data, lambda: extra | {"look": look})


def _limits(worker: "ModelWorker") -> dict[str, int]:
    return {"characters": PROMPT, "tokens": min(TOKENS, worker.model.longest), "alternatives": MOST}
