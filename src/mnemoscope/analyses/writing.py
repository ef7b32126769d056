"""Answers on disk: analyses/QUESTION.json and QUESTION.parquet, covered by analyses/manifest.json.

The same atlas gives the same bytes. Asking again replaces what was written. Answers are computed first and written
after, so that an atlas that lacks a table keeps the answers it has.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import polars as pl

from mnemoscope.analyses import refinement_events
from mnemoscope.analyses.questions import answer, module, paper
from mnemoscope.analyses.sources import projection, seed
from mnemoscope.atlas import Atlas
from mnemoscope.atlas.lock import locked
from mnemoscope.atlas.manifest import provenance
from mnemoscope.atlas.schema import ANSWER_COLUMNS
from mnemoscope.atlas.side import cover
from mnemoscope.atlas.store import write_free_table, write_json

SIDE = "analyses"


def document(atlas: Atlas, question: str, found: pl.DataFrame) -> dict[str, Any]:
    """The answer as JSON has it: question, projections, interval, paper, layers, totals."""
    asked = module(question)
    names = [field.name for field in ANSWER_COLUMNS]
    rows = found.select(names)
    return {
        "question": question,
        "projections": projection(atlas, *asked.PROJECTIONS),
        "interval": asked.INTERVAL.format(seed=seed(atlas)),
        "paper": asdict(paper(question)),
        "layers": rows.filter(pl.col("layer").is_not_null()).to_dicts(),
        "totals": rows.filter(pl.col("layer").is_null()).drop("layer").to_dicts(),
    }


def write(atlas: Atlas, questions: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Answers the questions, writes them into the atlas, and returns the documents that were written.

    Raises what `answer` raises, AtlasBusy while another process writes, and StoreFailed.
    """
    answers = {question: answer(atlas, question) for question in questions}
    listed = refinement_events.cases(atlas) if refinement_events.QUESTION in answers else None
    origin = provenance(atlas.manifest)
    documents = {question: document(atlas, question, found) for question, found in answers.items()}
    with locked(atlas.path):
        for question, found in answers.items():
            written = [f"{SIDE}/{question}.json", f"{SIDE}/{question}.parquet"]
            write_json(atlas.path / written[0], documents[question])
            rows = found.to_arrow()
            write_free_table(atlas.path / written[1], rows, name=question, provenance=origin, columns=ANSWER_COLUMNS)
            if listed is not None and question == refinement_events.QUESTION:
                written.append(f"{SIDE}/{question}.cases.parquet")
                write_free_table(
                    atlas.path / written[2], listed.to_arrow(), name=f"{question}.cases", provenance=origin
                )
            cover(atlas.path, SIDE, written)
    return documents
