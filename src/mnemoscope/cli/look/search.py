"""`mnemoscope search`: finds memories by text, or by a token that they promote, oppose or fire on."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnemoscope.cli import arguments as arg
from mnemoscope.cli.progress import reporting
from mnemoscope.cli.runner import emit
from mnemoscope.errors import OptionError
from mnemoscope.foundation.options.declared import like, option
from mnemoscope.foundation.options.mining_options import AtlasArgument, MiningOptions, parse_layers
from mnemoscope.foundation.options.prompt_options import AttributeOptions
from mnemoscope.foundation.options.search_fields import USUAL_FIELDS, check_search_fields

if TYPE_CHECKING:
    from mnemoscope.foundation.memory_names import Listed
    from mnemoscope.search import Index

_BY_TOKEN = {
    "promotes": ("promote", "top"),
    "demotes": ("oppose", "bottom"),
    "fires": ("fire on", "trigger"),
}


class SearchOptions(AtlasArgument):
    text: str | None = option(None, 'Words, "a phrase", or a beginning: par*', metavar="[TEXT]", argument=True)
    where: str = option(
        ",".join(USUAL_FIELDS),
        "Of patterns, annotations, words (at the triggers), triggers, values, bottom (a value's last tokens).",
        flag="--in",
        metavar="FIELDS",
    )
    layers: str | None = like(MiningOptions, "layers")
    promotes: str | None = option(
        None, "Memories with the token at their value's top, such as ·Paris.", metavar="TOKEN"
    )
    demotes: str | None = option(None, "The same for the bottom.", metavar="TOKEN")
    fires_on: str | None = option(None, "Memories with triggers that end in the token.", metavar="TOKEN")
    tokens_like: str | None = option(None, "Tokens of the vocabulary that read like this.", metavar="TEXT")
    limit: int = option(20, "How many to show.", least=1)
    offset: int = option(0, "How many to skip first.", least=0)
    save_list: Path | None = like(AttributeOptions, "save_list")


def search(options: SearchOptions, *, json: bool) -> None:
    """Find memories by text, or by a token.

    The text is that of their triggers, values, patterns and annotations. All words must be in the same prefix or
    description, or one of two (red OR blue); case, accents and plurals do not matter; what matched stands in «marks».
    First come memories whose pattern is it, then those with triggers in the word itself (arbit|r|ary is one), the most
    first; a sentence is shown once. The index is in ATLAS/search and is made when it is first needed. A space of a
    token may be typed as ·

    Example: mnemoscope search atlas '"capital of" france' --in triggers,patterns
    """
    atlas, save_list, limit = options.atlas, options.save_list, options.limit
    searches = {
        "promotes": options.promotes,
        "demotes": options.demotes,
        "fires": options.fires_on,
        "tokens like": options.tokens_like,
        "text": options.text,
    }
    names = [name for name, value in searches.items() if value is not None]
    if save_list is not None and options.tokens_like is not None:
        raise OptionError("--save-list is of memories, and --tokens-like finds tokens; leave one of them out")
    if len(names) != 1:
        raise OptionError(
            f"{len(names)} searches were asked for; give one of TEXT, --promotes, --demotes, --fires-on, --tokens-like"
        )
    layers = None if options.layers is None else parse_layers(options.layers)
    page: dict[str, Any] = {"limit": limit, "offset": options.offset, "layers": layers}
    fields = tuple(field.strip() for field in options.where.split(",") if field.strip())
    check_search_fields(fields)
    mined = arg.memories_of(atlas)
    for layer in layers or ():
        mined.memories(layer)
    from mnemoscope.search import open_index

    with reporting() as progress, open_index(atlas, progress=progress) as index:
        kind, sought = names[0], searches[names[0]] or ""
        if kind == "text":
            found = _search_text(index, sought, fields, page, as_json=json)
        elif kind == "tokens like":
            _search_tokens(index, sought, limit, as_json=json)
            return
        else:
            found = _search_token(index, sought, kind, page, as_json=json)
        if save_list is not None:
            from mnemoscope.foundation.memory_names import save_list as write

            origin = index.atlas.made_by(search=kind, text=sought, **page)
            write(save_list, found, model=mined.spec, made_by=origin)


def _search_text(
    index: "Index", text: str, fields: tuple[str, ...], page: dict[str, Any], *, as_json: bool
) -> "list[Listed]":
    result = index.search(text, fields=fields, **page)
    lacking = [field for field in fields if field in index.missing_fields]
    found: list[Listed] = [(str(hit.memory), -1 if hit.field == "bottom" else 1, hit.score) for hit in result.hits]
    if as_json:
        counted = {"total": result.total, "totals": result.totals, "exact": result.exact, "lacking": lacking}
        counted["notes"] = result.notes
        firing = [{"memories": list(map(str, hit.memories))} for hit in result.hits]
        hits = [row | memories for row, memories in zip(_rows(result.hits), firing, strict=True)]
        origin = index.atlas.made_by(text=text, fields=fields, **page)
        emit({"text": text, **counted, "offset": page["offset"], "hits": hits, "made_by": origin})
        return found
    counts = ", ".join(f"{count:,} in {field}" for field, count in result.totals.items())
    named = "hit" if result.total == 1 else "hits"
    sure = "" if result.exact else " (a common text: only the strongest triggers of every memory are counted)"
    from mnemoscope.foundation.formatting import show_text

    rows = []
    for hit in result.hits:
        line = show_text("".join(f"«{text}»" if matched else text for text, matched in hit.parts))
        # Of a long text the part around the first match.
        start = max(0, line.find("«") - 40)
        more = f"; {hit.firing:,} memories fire in it" if hit.firing > 1 else ""
        rows.append((str(hit.memory), hit.field, hit.detail + more, f"...{line[start:]}" if start > 3 else line))
    notes = [
        *result.notes,
        *(f"{index.atlas.path} has no {field}{'' if index.atlas.manifest.keys_only else ' yet'}" for field in lacking),
    ]
    notes += _count_more(result.total, len(rows), page)
    _print(f"{result.total:,} {named}; memories: {counts}{sure}", ("memory", "field", "found", ""), rows, notes)
    return found


def _rows(hits: Iterable[Any]) -> list[dict[str, Any]]:
    return [asdict(hit) | {"memory": str(hit.memory)} for hit in hits]


def _count_more(total: int, shown: int, page: dict[str, Any]) -> list[str]:
    end = page["offset"] + shown
    return [f"and {total - end:,} more (--offset {end} goes on)"] if total > end else []


def _search_token(index: "Index", token: str, kind: str, page: dict[str, Any], *, as_json: bool) -> "list[Listed]":
    verb, place = _BY_TOKEN[kind]
    tokens, total = index.token(token), index.count(token, kind=kind, layers=page["layers"])
    why = "" if token in (tokens[0].text, tokens[0].shown) else "no token reads"
    sought: str | int = token
    near = () if total or why else index.near(token)
    if near and (more := index.count(near[0].id, kind=kind, layers=page["layers"])):
        tokens, sought, total, why = near, near[0].id, more, f"no memories {verb}"
    fires = kind == "fires"
    hits = index.firing_on(sought, **page) if fires else index.promoting(sought, bottom=kind == "demotes", **page)
    listed = _rows(hits)
    weight, sign = "triggers" if fires else "score", -1 if kind == "demotes" else 1
    found: list[Listed] = [(row["memory"], sign, row[weight]) for row in listed]
    if as_json:
        named = [asdict(token) for token in tokens]
        listing = {"total": total, "offset": page["offset"], "hits": listed}
        origin = index.atlas.made_by(token=token, search=kind, **page)
        emit({"search": kind, "tokens": named, "near": bool(why), **listing, "made_by": origin})
        return found
    rows: list[tuple[str, ...]] = []
    if fires:
        columns = ["memory", ">triggers", ">best rank"]
        rows = [(row["memory"], str(row["triggers"]), str(row["rank"])) for row in listed]
    else:
        columns = ["memory", f">{place} rank", ">probability", ">score"]
        for row in listed:
            likely = "" if row["probability"] is None else f"{row['probability']:.4f}"
            rows.append((row["memory"], str(row["rank"]), likely, f"{row['score']:.3f}"))
    verb = verb if total != 1 else verb.replace("fire", "fires") if fires else f"{verb}s"
    memories = "memory" if total == 1 else "memories"
    headline = f"{total:,} {memories} {verb} {tokens[0].shown}"
    headline += f" ({why} {token!r}; this is the only near one)" if why else ""
    _print(headline, columns, rows, _count_more(total, len(listed), page))
    return found


def _search_tokens(index: "Index", text: str, limit: int, *, as_json: bool) -> None:
    tokens = index.tokens_like(text, limit=limit)
    if as_json:
        origin = index.atlas.made_by(text=text, limit=limit)
        emit({"search": "tokens like", "text": text, "tokens": [asdict(token) for token in tokens], "made_by": origin})
        return
    rows = [(str(token.id), token.shown, f"{token.count:,}") for token in tokens]
    headline = f"{len(tokens)} tokens" if tokens else f"no token reads like {text!r}"
    _print(headline, (">token", "text", ">occurs"), rows)


def _print(headline: str, columns: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> None:
    from rich.text import Text

    from mnemoscope.cli.drawing import print_table, stdout_console
    from mnemoscope.foundation.formatting import Table

    console = stdout_console(piped_width=120)
    console.print(Text(headline, style="bold"))
    if rows:
        print_table(console, Table(columns, rows))
    for note in notes:
        console.print(Text(note, style="dim"))
