"""`ms.search`: one search of an atlas as a frame. Whoever searches often keeps an `open_index`."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.tables import MadeFrame
from mnemoscope.errors import OptionError
from mnemoscope.foundation.options.search_fields import USUAL_FIELDS
from mnemoscope.foundation.progress import Progress
from mnemoscope.search.index import Index, open_index

Names = pl.List(pl.String)
_TEXT: dict[str, Any] = {"memory": str, "field": str, "text": str, "score": float, "count": int, "rank": int}
_TEXT |= {"detail": str, "memories": Names, "sentence": int}
_VALUE: dict[str, Any] = {"memory": str, "rank": int, "probability": float, "score": float}
_SCHEMAS = {
    "text": _TEXT,
    "promotes": _VALUE,
    "demotes": _VALUE,
    "fires": {"memory": str, "triggers": int, "rank": int},
}


def search(
    atlas: Atlas | Index | str | Path,
    text: str,
    fields: str | Sequence[str] | None = None,
    limit: int = 20,
    *,
    by: Literal["text", "promotes", "demotes", "fires"] = "text",
    layers: Sequence[int] | None = None,
    progress: bool | Progress = True,
) -> MadeFrame:
    """The memories that a text finds, best first, as `mnemoscope search` lists them; the index is made when it is first
    needed.

    A row for each hit: `memory`, `field`, `text` (what matched in «marks»), `score`, `count`, `rank`, `detail`,
    `memories` (those that fire in the sentence) and `sentence`; with `by` the text is a token, ` Paris`, and rows have
    `memory`, `rank`, and `probability` and `score`, or `triggers`. Raises SearchError, OptionError, MemoryIdError for a
    layer, and what opening an atlas raises.

    Args:
        atlas: An atlas, its folder, or an open index.
        text: The words that are sought, or a token.
        fields: Of patterns, annotations, words, triggers, values, bottom; None: all but bottom.
        limit: How many to show.
        by: text; or memories whose value promotes or demotes the token, or which it fires.
        layers: Only these layers, as numbers; None: all.
        progress: True: a bar in a terminal or notebook; or a function of stage, done, total (or None) and note.
    """
    if by not in _SCHEMAS or (by != "text" and fields is not None):
        about = f"by={by!r}, fields={fields!r} is not possible"
        raise OptionError(f"{about}; by is {', '.join(_SCHEMAS)}, and fields go with text")
    page: Any = {"limit": limit, "layers": layers}
    with nullcontext(atlas) if isinstance(atlas, Index) else open_index(atlas, progress=progress) as index:
        if by == "text":
            page["fields"] = USUAL_FIELDS if fields is None else (fields,) if isinstance(fields, str) else tuple(fields)
            hits: Sequence[Any] = index.search(text, **page).hits
        else:
            hits = (
                index.firing_on(text, **page)
                if by == "fires"
                else index.promoting(text, bottom=by == "demotes", **page)
            )
        rows = [[_cell(hit, name) for name in _SCHEMAS[by]] for hit in hits]
        found = MadeFrame(rows, schema=_SCHEMAS[by], orient="row")
        found.made_by = index.atlas.made_by(text=text, by=by, **page)
        return found


def _cell(hit: Any, name: str) -> Any:
    if name == "text":
        return "".join(f"«{part}»" if matched else part for part, matched in hit.parts)
    value = getattr(hit, name)
    return str(value) if name == "memory" else list(map(str, value)) if name == "memories" else value
