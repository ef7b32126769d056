"""`ms.search`: one search of an atlas as a frame. Whoever searches often keeps an `open_index`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.errors import OptionError
from mnemoscope.foundation.options.search_fields import USUAL_FIELDS
from mnemoscope.foundation.progress import Progress
from mnemoscope.search.index import open_index

By = Literal["text", "promotes", "demotes", "fires"]
_TEXT = {"memory": pl.String, "field": pl.String, "text": pl.String, "score": pl.Float64, "count": pl.Int64}
_TEXT |= {"rank": pl.Int64, "detail": pl.String, "memories": pl.List(pl.String), "sentence": pl.Int64}
_VALUE = {"memory": pl.String, "rank": pl.Int64, "probability": pl.Float64, "score": pl.Float64}
_FIRES = {"memory": pl.String, "triggers": pl.Int64, "rank": pl.Int64}


class FoundFrame(pl.DataFrame):
    """What a search found; what polars makes of it, such as a selection, is a plain frame."""

    made_by: Mapping[str, Any] | None = None


def search(
    atlas: Atlas | str | Path,
    text: str,
    fields: str | Sequence[str] | None = None,
    limit: int = 20,
    *,
    by: By = "text",
    layers: Sequence[int] | None = None,
    progress: bool | Progress = True,
) -> FoundFrame:
    """The memories that a text finds, best first, as `mnemoscope search` lists them; the index is made when it is first
    needed.

    A row for each hit: `memory`, `field`, `text` (what matched in «marks»), `score`, `count`, `rank`, `detail`,
    `memories` (those that fire in the sentence) and `sentence`. With `by` the text is a token, ` Paris`: memories whose
    value `promotes` or `demotes` it (`memory`, `rank`, `probability`, `score`), or which it `fires` (`memory`,
    `triggers`, `rank`). Raises SearchError, OptionError, MemoryIdError for a layer, and what opening an atlas raises.
    """
    named = (fields,) if isinstance(fields, str) else fields
    page: Any = {"limit": limit, "layers": layers}
    if by not in ("text", "promotes", "demotes", "fires") or (by != "text" and named is not None):
        raise OptionError(
            f"by={by!r}, fields={fields!r} is not possible; by is text, promotes, demotes or fires, and fields go with"
            " text"
        )
    with open_index(atlas, progress=progress) as index:
        if by == "text":
            chosen = tuple(USUAL_FIELDS if named is None else named)
            hits: Sequence[Any] = index.search(text, fields=chosen, **page).hits
            page["fields"], schema = chosen, _TEXT
        elif by == "fires":
            hits, schema = index.firing_on(text, **page), _FIRES
        else:
            hits, schema = index.promoting(text, bottom=by == "demotes", **page), _VALUE
        found = FoundFrame([[_cell(hit, name) for name in schema] for hit in hits], schema=schema, orient="row")
        found.made_by = index.atlas.made_by(text=text, by=by, **page)
        return found


def _cell(hit: Any, name: str) -> Any:
    if name == "text":
        return "".join(f"«{part}»" if matched else part for part, matched in hit.parts)
    value = getattr(hit, name)
    return str(value) if name == "memory" else list(map(str, value)) if name == "memories" else value
