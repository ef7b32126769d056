"""What judgements add up to, computed once for as long as nobody says more; and Figure 2 from people, drawn.

Drawing needs the figures' library, which is imported when the first drawing is asked for.
"""

from typing import Any

import polars as pl
from starlette.exceptions import HTTPException

from mnemoscope.cache import Cache
from mnemoscope.pages.annotate_host import results_view
from mnemoscope.pages.questions import answers_of, draw_answer
from mnemoscope.web.annotator_session import AnnotatorSession


class Tables:
    """The results of one site."""

    def __init__(self, session: AnnotatorSession) -> None:
        self._session = session
        self._tables, self._drawings = Cache(1), Cache(1)

    def all(self) -> dict[str, Any]:
        """The tables as data; raises 404 where nobody has judged, AnnotationError, AtlasDamaged."""
        return self._current()[1]

    def drawing(self) -> str:
        """Figure 2 with automatic patterns and people's side by side, as an `svg` element; empty without judgements."""
        mark, data = self._current()
        if all(row["value"] is None for row in data["figure"]):
            return ""
        return self._drawings.get(mark, lambda: self._draw(pl.DataFrame(data["figure"], infer_schema_length=None)))

    def _current(self) -> tuple[Any, dict[str, Any]]:
        from mnemoscope.campaigns.results import compute_results

        store = self._session.site.judgements.existing_store()
        if store is None:
            raise HTTPException(404, "Nobody has judged anything yet.")
        # Rows are only ever added, so their numbers say whether anything changed.
        mark = (self._session.site.edition().state, self._session.site.judgements.version_marks())
        return mark, self._tables.get(mark, lambda: results_view(compute_results(store)))

    def _draw(self, people: pl.DataFrame) -> str:
        from dataclasses import replace

        from mnemoscope.questions.question import EMPTY

        answer = answers_of(self._session.site.edition())["key_patterns"]
        found = people.select(
            pl.col("layer").cast(pl.Int16), "name", "value", pl.col("count").cast(pl.Int64), "low", "high"
        )
        named = found.with_columns(pl.concat_str(pl.lit("people_"), "name").alias("name")).cast(EMPTY.schema)
        own = answer.table if answer.missing else answer.table.filter(~pl.col("name").str.starts_with("people_"))
        whole = pl.concat([own.select(EMPTY.columns).cast(EMPTY.schema), named])
        answer = replace(answer, table=whole, missing="")
        label = "Figure 2 from people's judgements beside automatic patterns; the numbers are in the table below"
        return draw_answer({"key_patterns": answer}, "key_patterns", name="people", label=label)
