"""The report's page: the paper's claims with their verdicts, every question's section, striking memories with their
triggers, and the methods box: the facts needed to judge the numbers or to reproduce them, from the manifest.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.form import Manifest, MinedCorpus, MinedModel
from mnemoscope.atlas.schema import THE_PAPERS
from mnemoscope.foundation.formatting import number, percent, pluralise, show_text, show_token
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.foundation.words import Words
from mnemoscope.questions.question import Answer
from mnemoscope.show.figures.examples import judged_sentence
from mnemoscope.show.figures.routing import LayerRouting
from mnemoscope.show.figures.sections import compare_with_paper, csv_link, describe_upper_layers
from mnemoscope.show.figures.summary import describe_mining, warnings
from mnemoscope.show.pages.changes import comparison_views
from mnemoscope.show.pages.edition import Data, Edition
from mnemoscope.show.pages.overview import striking_memories
from mnemoscope.show.pages.page import Page
from mnemoscope.show.pages.questions import answers_of, question_view
from mnemoscope.show.pages.routing import routing_views
from mnemoscope.show.pages.triggers import group_triggers, shorten_end, shorten_start, triggers_view

Facts = list[tuple[str, str]]


def report_page(edition: Edition, compositions: pl.DataFrame | None, routing: Sequence[LayerRouting] = ()) -> Page:
    """The page; `compositions` are the listed cases of the last layer, None without a list."""
    atlas, answers = edition.atlas, answers_of(edition)
    sections = [question_view(edition, one) | {"csv": csv_link(answer.table)} for one, answer in answers.items()]
    data = {
        "model": atlas.manifest.model.spec,
        "text": atlas.manifest.corpus.spec,
        "warnings": warnings(atlas),
        "mined": describe_mining(atlas),
        "claimed": [one for one in sections if one["question"] in THE_PAPERS and not one["missing"]],
        "comparison": compare_with_paper(answers),
        "upper": describe_upper_layers(next(iter(answers.values()))),
        "sections": sections,
        "examples": read_memories(edition),
        "cases": [] if compositions is None or compositions.is_empty() else composition_cases(edition, compositions),
        "judged": judged_sentence(answers["refinement_events"]),
        "methods": methods(atlas, answers),
        "routing": routing_views(edition, routing),
        "comparisons": comparison_views(atlas),
    }
    return Page("report.html", f"Memories of {data['model']}", data)


def read_memories(edition: Edition) -> list[Data]:
    """The striking memories, each with its best triggers, patterns and top tokens."""
    views = []
    for striking in striking_memories(edition):
        memory = MemoryId.parse(striking["memory"])
        document = edition.document(memory)
        top = [token for token, *_ in document.value_tokens("top")[:6]]
        triggers = group_triggers(triggers_view(document), 1, says=top[0], reading=edition.atlas.reading)
        about = {
            "triggers": triggers[:8],
            "patterns": (document.patterns or [])[:5],
            "tokens": [edition.atlas.vocabulary.token(token) for token in top],
        }
        views.append(striking | about)
    return views


def composition_cases(edition: Edition, listed: pl.DataFrame) -> list[Data]:
    """Prefixes whose prediction the last layer composes: the prefix, and the next token by each stream and the text.
    Of a masked model the sentences, with the mask marked.
    """
    atlas, cases = edition.atlas, []
    stored = atlas.table("prefixes").select("prefix", "sentence", "position").rows_by_key("prefix", unique=True)
    places = [stored[prefix] for prefix in listed["prefix"]]
    of = atlas.sentences([sentence for sentence, _ in places], columns=["sentence", "tokens"])
    sentences = {sentence: np.array(tokens) for sentence, tokens in of.iter_rows()}
    for row, (sentence, position) in zip(listed.to_dicts(), places, strict=True):
        tokens = [show_token(row[f"{name}_text"] or "") for name in ("residual", "ffn", "output", "next")]
        read = atlas.reading.context(sentences[sentence], position).tolist()
        before, after = (atlas.vocabulary.text(part) for part in (read[:position], read[position + 1 :]))
        cases.append(
            {
                "short_before": shorten_start(show_text(before.rstrip("\ufffd"))),
                "token": atlas.vocabulary.token(read[position]),
                "short_after": shorten_end(show_text(after)),
                "said": tokens,
            }
        )
    return cases


def methods(atlas: Atlas, answers: Mapping[str, Answer]) -> list[tuple[str, Facts]]:
    manifest = atlas.manifest
    return [
        ("Model", _model(manifest.model)),
        ("Text", _text(manifest.corpus, manifest.plan)),
        ("Questions", _questions(manifest, answers, atlas.reading.words)),
        ("Plan", _plan(manifest)),
    ]


def _model(model: MinedModel) -> Facts:
    sizes = model.sizes
    layers = f"{pluralise(len(sizes.memories), 'layer')} of"
    memories = f"{' or '.join(f'{size:,}' for size in sorted(set(sizes.memories)))} memories"
    rest = [f"{name} {getattr(sizes, name):,}" for name in ("hidden", "vocabulary", "context")]
    share = percent(sizes.ffn_parameters / max(1, sizes.parameters))
    activation = f"gated {model.activation}" if model.gated else model.activation
    errors = [f"{name} {error:.1g}" for name, error in sorted(model.proof.items()) if error is not None]
    return _known_facts(
        ("model", model.spec),
        ("revision", model.revision),
        ("fingerprint", model.fingerprint),
        ("shape", ", ".join([f"{layers} {memories}", *rest])),
        ("parameters", f"{sizes.parameters:,}, {share} of them in feed-forward layers"),
        ("kind", ", ".join((model.family, model.block, activation))),
        ("load-time proof, largest errors", ", ".join(errors)),
    )


def _known_facts(*facts: tuple[str, str | None]) -> Facts:
    return [(name, text) for name, text in facts if text]


def _text(corpus: MinedCorpus, plan: Mapping[str, Any]) -> Facts:
    counts, validation, overlap = corpus.counts, plan.get("validation"), corpus.overlap
    counted = ("documents", "document"), ("mined_sentences", "sentence"), ("mined_tokens", "token")
    held = pluralise(counts["held_out_sentences"], "sentence")
    also = f"{overlap.sentences:,} of {overlap.of:,} validation sentences ({percent(overlap.share)})"
    return [
        ("text", corpus.spec),
        ("fingerprint", corpus.fingerprint),
        ("mined", ", ".join(pluralise(counts[name], noun) for name, noun in counted)),
        ("held out", f"{percent(corpus.held_out_share)} of the sentences ({held})"),
        ("validation text", "the held-out sentences" if validation is None else str(validation)),
        ("validation sentences also mined", also),
    ]


def _questions(manifest: Manifest, answers: Mapping[str, Answer], words: Words) -> Facts:
    questions = manifest.questions
    one, two = (questions.removals_excluded[length] for length in ("length_one", "length_two"))
    kinds = dict.fromkeys(answer.interval for answer in answers.values() if answer.interval)
    asked = f"validation {words['cases']} (Figures 7 to 11)"
    return _known_facts(
        (asked, f"{questions.prefixes:,} of {questions.prefixes_asked:,} asked for"),
        ("memories per layer whose triggers lose a token (Figure 3)", str(questions.removals_per_layer)),
        ("triggers of one token, left out of Figure 3", f"{one:,}"),
        ("triggers of two tokens, left out of Figure 3", f"{two:,}" if two else None),
        *((f"projection of {name}", projection) for name, projection in sorted(manifest.projections.items())),
        ("95 % intervals", "; ".join(kinds) or "none"),
    )


def _plan(manifest: Manifest) -> Facts:
    left_out = {"model", "model_fingerprint", "corpus", "corpus_fingerprint", "validation", "layers"}
    names = sorted(manifest.plan.keys() - left_out)
    facts = [(name.replace("_", " "), _value(manifest.plan[name])) for name in names]
    facts.append(("batches computed in halves for want of memory", f"{len(manifest.out_of_memory_batches):,}"))
    facts.append(("hash of the plan", manifest.plan_hash))
    facts.append(("mnemoscope", f"{manifest.package}, atlas schema {manifest.schema}"))
    return facts


def _value(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return number(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
