"""The report's page: the overview's cards, every question's section, and striking memories with their triggers."""

from collections.abc import Sequence
from typing import Any

import polars as pl

from mnemoscope.foundation.formatting import show_text, show_token
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.show.figures.examples import judged_sentence
from mnemoscope.show.figures.methods import methods
from mnemoscope.show.figures.routing import LayerRouting
from mnemoscope.show.figures.sections import compare_with_paper, csv_link, describe_upper_layers
from mnemoscope.show.figures.summary import cards, describe_mining, warnings
from mnemoscope.show.pages.changes import comparison_views
from mnemoscope.show.pages.edition import Edition
from mnemoscope.show.pages.overview import striking_memories
from mnemoscope.show.pages.page import Page
from mnemoscope.show.pages.questions import answers_of, question_view
from mnemoscope.show.pages.routing import routing_views
from mnemoscope.show.pages.triggers import fold_groups, group_triggers, shorten_start, triggers_view


def report_page(edition: Edition, compositions: pl.DataFrame | None, routing: Sequence[LayerRouting] = ()) -> Page:
    """The page; `compositions` are the listed cases of the last layer, None without a list."""
    atlas, answers = edition.atlas, answers_of(edition)
    data = {
        "model": atlas.manifest.model.spec,
        "text": atlas.manifest.corpus.spec,
        "warnings": warnings(atlas),
        "cards": cards(describe_mining(atlas), answers),
        "comparison": compare_with_paper(answers),
        "upper": describe_upper_layers(next(iter(answers.values()))),
        "sections": [
            question_view(edition, question) | {"csv": csv_link(answer.table)} for question, answer in answers.items()
        ],
        "examples": read_memories(edition),
        "cases": [] if compositions is None or compositions.is_empty() else composition_cases(edition, compositions),
        "judged": judged_sentence(answers["refinement_events"]),
        "methods": methods(atlas, answers),
        "routing": routing_views(edition, routing),
        "comparisons": comparison_views(atlas),
    }
    return Page("report.html", f"Memories of {data['model']}", data)


TRIGGERS = 8
PATTERNS = 5
TOKENS = 6


def read_memories(edition: Edition) -> list[dict[str, Any]]:
    """The striking memories, each with its best triggers, patterns and top tokens."""
    return [_example(edition, one) for one in striking_memories(edition)]


def _example(edition: Edition, striking: dict[str, Any]) -> dict[str, Any]:
    memory = MemoryId.parse(striking["memory"])
    top = edition.row("values", memory)["top_tokens"][:TOKENS]
    triggers = fold_groups(group_triggers(triggers_view(edition, memory, patterns=()), 1, says=top[0]))
    return striking | {
        "triggers": triggers[:TRIGGERS],
        "patterns": (edition.patterns(memory) or [])[:PATTERNS],
        "tokens": [edition.atlas.vocabulary.token(token) for token in top],
    }


def composition_cases(edition: Edition, listed: pl.DataFrame) -> list[dict[str, Any]]:
    """Prefixes whose prediction the last layer composes: the prefix, and what each stream and the text say next."""
    atlas, cases = edition.atlas, []
    stored = atlas.table("prefixes").select("prefix", "sentence", "position").rows_by_key("prefix", unique=True)
    prefixes = atlas.prefixes([stored[prefix] for prefix in listed["prefix"]])
    for row, prefix in zip(listed.to_dicts(), prefixes, strict=True):
        tokens = [show_token(row[f"{name}_text"] or "") for name in ("residual", "ffn", "output", "next")]
        before = atlas.vocabulary.text(prefix[:-1]).rstrip("\ufffd")
        token = atlas.vocabulary.token(prefix[-1])
        cases.append({"short_before": shorten_start(show_text(before)), "token": token, "said": tokens})
    return cases
