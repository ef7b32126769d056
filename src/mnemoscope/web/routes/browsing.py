"""The routes of the pages made from the atlas alone: overview, layers, questions, memories."""

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.exceptions import HTTPException
from starlette.requests import Request

from mnemoscope.errors import MemoryIdError
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.show.pages.layers import Choice, layer_page, layers_page
from mnemoscope.show.pages.memory import memory_page
from mnemoscope.show.pages.overview import overview_page
from mnemoscope.show.pages.page import Page
from mnemoscope.show.pages.questions import answers_of, question_page, questions_page
from mnemoscope.show.pages.routing import routing_page
from mnemoscope.show.pages.trace import CHANGES, PROMPT, Change, TraceAddress
from mnemoscope.web.page_routes import both
from mnemoscope.web.site import Site

Number = Annotated[int, Path(ge=0, le=100_000, description="A layer, counted from 0")]
Question = Annotated[str, Path(max_length=100, description="A question, such as value_agreement")]
Name = Annotated[str, Path(max_length=100, description="A memory, such as L10.M222")]
Pattern = Annotated[int | None, Query(ge=0, le=32_767, description="The pattern whose triggers are marked")]
Changes = Annotated[
    list[Change], Query(alias="set", max_length=CHANGES, description="Interventions to carry along, such as L10.M222=0")
]
Prompt = Annotated[str | None, Query(max_length=PROMPT, description="A traced prompt to carry along")]
At = Annotated[str, Query(max_length=10, description="Where those interventions hold, to carry along")]


def add_pages(routes: APIRouter, site: Site) -> None:
    @both(routes, site, "/", name="browse_overview")
    def overview(request: Request) -> Page:
        """What was mined, the answers in words, and the most striking memories."""
        return overview_page(site.edition())

    @both(routes, site, "/layers", name="layers_layers")
    def layers(request: Request) -> Page:
        """Every layer in a line."""
        return layers_page(site.edition())

    @both(routes, site, "/layers/{layer}", name="layers_layer", stored=False)
    def layer(request: Request, layer: Number, choice: Annotated[Choice, Query()]) -> Page:
        """One layer: its memories as a table and a picture, and what the questions say of it."""
        view = layer_page(site.edition(), layer, choice)
        if choice.page > (last := view.data["pages"]):
            raise HTTPException(404, f"There is no page {choice.page} of these memories; the last one is {last}.")
        return view

    @both(routes, site, "/routing", name="layers_routing")
    def routing(request: Request) -> Page:
        """Which experts get which tokens, of a model of experts."""
        if not site.edition().atlas.has("routing"):
            raise HTTPException(404, "The model has no experts, so nothing is routed.")
        return routing_page(site.edition())

    @both(routes, site, "/questions", name="questions_questions")
    def questions(request: Request) -> Page:
        """Every question of the paper, and what this atlas answers."""
        return questions_page(site.edition())

    @both(routes, site, "/questions/{question}", name="questions_question")
    def question(request: Request, question: Question) -> Page:
        """One question of the paper: its figure, ours beside the paper's, and the numbers."""
        answers = answers_of(site.edition())
        if question not in answers:
            raise HTTPException(404, f"There is no question {question!r}; they are {', '.join(answers)}.")
        return question_page(site.edition(), question)


def add_memories(routes: APIRouter, site: Site) -> None:
    """The route of memories, which matches any single name at the top level, and so must be added last."""

    def published_judgements(name: str, **_: object) -> object:
        """The published judgements of a memory, which may change while the rest of its page stays."""
        try:
            return site.judgements.published_for(site.atlas[MemoryId.parse(name)].id) or None
        except MemoryIdError:
            return None

    @both(routes, site, "/{name}", name="browse_memory", mark=published_judgements)
    def memory(
        request: Request,
        name: Name,
        pattern: Pattern = None,
        carried: Changes = [],  # noqa: B006
        prompt: Prompt = None,
        at: At = "all",
    ) -> Page:
        """One memory: triggers, value, activity, patterns, neighbours."""
        if not name.startswith("L"):
            raise HTTPException(404, f"There is no page {f'/{name}'!r}.")
        return memory_page(
            site.edition(),
            MemoryId.parse(name),
            pattern=pattern,
            people=site.judgements.published_for(MemoryId.parse(name)),
            changes=carried,
            carried=TraceAddress(prompt=prompt, changes=carried, at=at),
            traces=site.model is not None,
        )
