"""The overview: the paper's claims with their verdicts and small figures, the most striking memories, and facts about
the mining.
"""

import polars as pl

from mnemoscope.atlas.manifest import RUN
from mnemoscope.atlas.schema import THE_PAPERS
from mnemoscope.atlas.tables import model_words
from mnemoscope.foundation.files import read_object
from mnemoscope.foundation.formatting import format_blocks, show_text
from mnemoscope.questions.answers import lacking_table
from mnemoscope.questions.registry import load_question
from mnemoscope.show.figures.examples import best_examples
from mnemoscope.show.figures.summary import describe_mining, warnings
from mnemoscope.show.pages.edition import Data, Edition
from mnemoscope.show.pages.page import Page, PageKind
from mnemoscope.show.pages.questions import answers_of, draw_small
from mnemoscope.show.pages.triggers import place_view, shorten_end, shorten_start


def overview_page(edition: Edition) -> Page:
    """What was mined, the paper's claims with verdicts, and the most striking memories."""
    data = edition.tables.get("overview", lambda: overview_view(edition))
    return Page(
        "overview.html", "", data, lambda: edition.tables.get("overview words", lambda: overview_words(edition, data))
    )


def overview_view(edition: Edition) -> Data:
    """Model, text, plan, run, the totals of every question, warnings, and the most striking memories."""
    manifest = edition.atlas.manifest
    mined, corpus = manifest.model, manifest["corpus"]
    blocks = format_blocks(mined.layer_blocks, mined.other_blocks) if mined.other_blocks else None
    answers = answers_of(edition)
    # A stored answer may be empty.
    there = {question: answer for question, answer in answers.items() if not answer.table.is_empty()}
    facts = ("spec", "revision", "fingerprint", "family", "block", "activation")
    return {
        "model": {name: getattr(mined, name) for name in facts}
        | {"sizes": manifest["model"]["sizes"], "blocks": blocks},
        "text": {"spec": manifest.corpus.spec}
        | {name: corpus[name] for name in ("fingerprint", "counts", "held_out_share", "overlap")},
        "plan": manifest.plan,
        # The record of the run is not covered by a hash, so nothing else depends on it.
        "finished": read_object(edition.atlas.local(RUN)).get("finished"),
        "package": manifest.package,
        "atlas": edition.atlas.manifest_hash,
        "layers": [{"layer": layer, "memories": edition.atlas.memories(layer)} for layer in edition.atlas.layers],
        "memories": sum(edition.atlas.memories(layer) for layer in edition.atlas.layers),
        "answers": {
            question: answer.table.filter(pl.col("layer").is_null()).drop("layer").to_dicts()
            for question, answer in there.items()
        },
        "unanswered": [question for question in answers if question not in there],
        "striking": edition.mined.get("striking", lambda: striking_memories(edition)),
    }


def overview_words(edition: Edition, data: Data) -> Data:
    from mnemoscope.show.figures.sections import compare_answer

    # Questions beyond the paper need tables that most atlases lack.
    asked = [question for question in THE_PAPERS if not load_question(question).refusal(edition.atlas)]
    unanswered = [question for question in asked if question in data["unanswered"]]
    not_mined = [question for question in unanswered if lacking_table(edition.atlas, question)]
    manifest, answers = edition.atlas.manifest, answers_of(edition)
    return {
        "warnings": warnings(edition.atlas),
        "claimed": [
            {**one, "comparison": compare_answer(answers[one["question"]], answers)}
            for one in draw_small(edition, *THE_PAPERS)
        ],
        "some": str(edition.atlas.name(edition.atlas.layers[-1], 0)),
        "opened_by": model_words(manifest.plan, otherwise=manifest.model.spec),
        "mined": describe_mining(edition.atlas),
        "waiting": [question for question in unanswered if question not in not_mined],
        "left_out": {question: answers[question].question.title for question in not_mined},
        "asked": len(asked),
    }


def striking_memories(edition: Edition) -> list[Data]:
    """The most striking memories; `example` is a trigger that speaks of the value's top token, if there is one."""
    memories, atlas = [], edition.atlas
    for row in best_examples(atlas).to_dicts():
        memory = atlas.name(row["layer"], row["memory"])
        says = row["top_token"]
        triggers = atlas.best_triggers(row["layer"], None, memories=[row["memory"]]).sort("rank").to_dicts()
        followed = [one for one in triggers if one[atlas.reading.spoken_of] == says]
        best = min(followed or triggers[:1], key=lambda one: (one["prefix_group"], one["rank"]))
        (tokens,) = atlas.sentences([best["sentence"]], columns=["sentence", "tokens"])["tokens"].to_list()
        shown = place_view(atlas, best | {"tokens": tokens})
        memories.append(
            {
                "memory": str(memory),
                "says": atlas.vocabulary.token(says),
                **{name: row[name] for name in ("agreement", "max_probability", "working_probability", "prefixes")},
                "example": {
                    "short_before": shorten_start(show_text(shown["before"])),
                    "token": shown["token"],
                    "next": shown["next"],
                    "foretold": bool(followed),
                    **({} if atlas.reading.causal else {"short_after": shorten_end(show_text(shown["after"]))}),
                },
            }
        )
    return memories


PAGES = (PageKind("overview", "/", overview_page, label="Overview", exported=True),)
