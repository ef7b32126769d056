"""`mnemoscope search`: memories by text, or by a token that they promote, oppose or fire on."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mnemoscope.cli.frame import Debug, Json, at_least, emit
from mnemoscope.cli.progress import reporting
from mnemoscope.errors import OptionError

if TYPE_CHECKING:
    from rich.table import Table

    from mnemoscope.search import Index, SearchResult

_BY_TOKEN = {
    "promotes": ("promote", "top"),
    "demotes": ("oppose", "bottom"),
    "fires": ("fire on", "trigger"),
}


def search(
    atlas: Annotated[Path, typer.Argument(metavar="ATLAS", help="The folder of the atlas.", show_default=False)],
    text: Annotated[
        str | None,
        typer.Argument(metavar="[TEXT]", help='Words, "a phrase", or a beginning: par*', show_default=False),
    ] = None,
    where: Annotated[
        str,
        typer.Option(
            "--in", metavar="FIELDS", help="Of triggers, values, patterns, annotations, bottom (a value's last tokens)."
        ),
    ] = "triggers,values,patterns,annotations",
    layers: Annotated[str | None, typer.Option(metavar="0-3,7", help="Only these layers.  [default: all]")] = None,
    promotes: Annotated[
        str | None, typer.Option(metavar="TOKEN", help="Memories with the token at their value's top, such as ·Paris.")
    ] = None,
    demotes: Annotated[str | None, typer.Option(metavar="TOKEN", help="The same for the bottom.")] = None,
    fires_on: Annotated[
        str | None, typer.Option("--fires-on", metavar="TOKEN", help="Memories with triggers that end in the token.")
    ] = None,
    tokens_like: Annotated[
        str | None, typer.Option("--tokens-like", metavar="TEXT", help="Tokens of the vocabulary that read like this.")
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", help="How many to show.")] = 20,
    offset: Annotated[int, typer.Option(metavar="N", help="How many to pass over first.")] = 0,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Find memories by what their triggers, values, patterns or annotations say.

    All words must be in the same prefix or description; case and accents do not matter; what matched stands in «marks».
    The index lies in ATLAS/search and is made when it is first needed. A space of a token may be typed as ·

    Example: mnemoscope search atlas '"capital of" france' --in triggers,patterns
    """
    at_least("--limit", limit, 1)
    at_least("--offset", offset, 0)
    asked = {"promotes": promotes, "demotes": demotes, "fires": fires_on, "tokens like": tokens_like, "text": text}
    given = [name for name, value in asked.items() if value is not None]
    if len(given) != 1:
        raise OptionError(
            f"{len(given)} searches were asked for; give one of TEXT, --promotes, --demotes, --fires-on, --tokens-like"
        )
    from mnemoscope.mining_options import parse_layers
    from mnemoscope.search import open_index

    chosen = None if layers is None else parse_layers(layers)
    page: dict[str, Any] = {"limit": limit, "offset": offset, "layers": chosen}
    with reporting() as progress, open_index(atlas, progress=progress) as index:
        kind, token = given[0], asked[given[0]] or ""
        if kind == "text":
            fields = tuple(field.strip() for field in where.split(",") if field.strip())
            _search_text(index, token, fields, page, as_json=json)
        elif kind == "tokens like":
            _search_tokens(index, token, limit, as_json=json)
        else:
            _search_token(index, token, kind, page, as_json=json)


def _search_text(index: "Index", text: str, fields: tuple[str, ...], page: dict[str, Any], *, as_json: bool) -> None:
    result = index.search(text, fields=fields, **page)
    lacking = [field for field in fields if field in index.lacking]
    if as_json:
        hits = [dataclasses.asdict(hit) | {"memory": str(hit.memory)} for hit in result.hits]
        plain = {"total": result.total, "totals": result.totals, "exact": result.exact, "lacking": lacking}
        emit({"text": text, **plain, "offset": page["offset"], "hits": hits})
        return
    from rich.text import Text

    from mnemoscope.cli.picture import grid

    counts = ", ".join(f"{count:,} in {field}" for field, count in result.totals.items())
    sure = "" if result.exact else " (a common text: only the strongest triggers of every memory are counted)"
    table = grid(("memory", "left"), ("field", "left"), ("found", "left"), ("", "left"))
    for hit in result.hits:
        table.add_row(str(hit.memory), hit.field, hit.detail, Text(_marked(hit.parts)))
    notes = [f"{index.atlas.path} has no {field} yet" for field in lacking]
    _print(f"{result.total:,} found: {counts}{sure}", table if result.hits else None, notes + _more(result, page))


def _marked(parts: tuple[tuple[str, bool], ...]) -> str:
    """One line with the matched parts in marks; of a long text the piece around the first of them."""
    from mnemoscope.atlas.visible import in_running_text

    line = in_running_text("".join(f"«{text}»" if matched else text for text, matched in parts))
    start = max(0, line.find("«") - 40)
    return f"...{line[start:]}" if start > 3 else line


def _more(result: "SearchResult", page: dict[str, Any]) -> list[str]:
    left = result.total - page["offset"] - len(result.hits)
    return [f"and {left:,} more (--offset {page['offset'] + len(result.hits)} goes on)"] if left > 0 else []


def _search_token(index: "Index", token: str, kind: str, page: dict[str, Any], *, as_json: bool) -> None:
    total = index.count(token, kind=kind, layers=page["layers"])
    tokens = index.token(token)
    rows: list[dict[str, Any]]
    if kind == "fires":
        rows = [dataclasses.asdict(row) | {"memory": str(row.memory)} for row in index.firing_on(token, **page)]
    else:
        found = index.promoting(token, bottom=kind == "demotes", **page)
        rows = [dataclasses.asdict(row) | {"memory": str(row.memory)} for row in found]
    if as_json:
        named = [dataclasses.asdict(token) for token in tokens]
        emit({"search": kind, "tokens": named, "total": total, "offset": page["offset"], "hits": rows})
        return
    from mnemoscope.cli.picture import grid

    verb, place = _BY_TOKEN[kind]
    if kind == "fires":
        table = grid(("memory", "left"), ("triggers", "right"), ("best rank", "right"))
        for row in rows:
            table.add_row(row["memory"], str(row["triggers"]), str(row["rank"]))
    else:
        table = grid(("memory", "left"), (f"{place} rank", "right"), ("probability", "right"), ("score", "right"))
        for row in rows:
            likely = "" if row["probability"] is None else f"{row['probability']:.4f}"
            table.add_row(row["memory"], str(row["rank"]), likely, f"{row['score']:.3f}")
    left = total - page["offset"] - len(rows)
    notes = [f"and {left:,} more (--offset {page['offset'] + len(rows)} goes on)"] if left > 0 else []
    verb = verb if total != 1 else verb.replace("fire", "fires") if kind == "fires" else f"{verb}s"
    memories = "memory" if total == 1 else "memories"
    _print(f"{total:,} {memories} {verb} {tokens[0].shown}", table if rows else None, notes)


def _search_tokens(index: "Index", text: str, limit: int, *, as_json: bool) -> None:
    found = index.tokens_like(text, limit=limit)
    if as_json:
        emit({"search": "tokens like", "text": text, "tokens": [dataclasses.asdict(token) for token in found]})
        return
    from rich.text import Text

    from mnemoscope.cli.picture import grid

    table = grid(("token", "right"), ("text", "left"), ("occurs", "right"))
    for token in found:
        table.add_row(str(token.id), Text(token.shown), f"{token.count:,}")
    _print(f"{len(found)} tokens" if found else f"no token reads like {text!r}", table if found else None, [])


def _print(headline: str, table: "Table | None", notes: list[str]) -> None:
    from rich.text import Text

    from mnemoscope.cli.console import drawing

    console = drawing(piped_width=120)
    console.print(Text(headline, style="bold"))
    if table is not None:
        console.print(table)
    for note in notes:
        console.print(Text(note, style="dim"))
