"""`mnemoscope show`: one memory in the terminal; `mnemoscope verify`: whether an atlas is complete and unchanged."""

from contextlib import suppress
from typing import Annotated, Any

import typer

from mnemoscope.cli import arguments as arg
from mnemoscope.cli.runner import emit
from mnemoscope.errors import AtlasDamaged


def show(
    atlas: arg.AtlasFolder,
    memory: Annotated[str, typer.Argument(metavar="MEMORY", help="Such as L10.M222.", show_default=False)],
    limit: Annotated[int, typer.Option(metavar="N", help="Prefixes to show of each sign (--json gives all).")] = 20,
    json: arg.Json = False,
) -> None:
    """Show one memory in the terminal.

    Its triggers, its value over the vocabulary, its activity, and the memories with the most similar values.
    The trigger token of a prefix stands in «marks»; a space inside a token shows as · and a line break as ⏎.
    A prefix that occurs several times is shown once, with its count, and near-duplicates are folded under the best.
    In a terminal, tokens have the colour of the activation at them if the atlas has the table token_activations.

    Example: mnemoscope show atlas L10.M222
    """
    arg.at_least(1, limit=limit)
    from mnemoscope.foundation.memory_names import MemoryId

    name = MemoryId.parse(memory)
    arg.memories_of(atlas).number(name)
    from mnemoscope.atlas import open_atlas

    opened = open_atlas(atlas)
    shown = opened[name]
    tables: dict[str, Any] = {"triggers": shown.triggers(sign=None), "activity": shown.activity()}
    if opened.manifest.part is None:
        tables |= {"value": shown.value(), "neighbours": shown.neighbours()}
        if opened.has("patterns"):
            tables["patterns"] = shown.patterns()
        if opened.has("labels"):
            tables["labels"] = shown.labels()
        if opened.has("importance", layer=shown.id.layer):
            tables["importance"] = shown.importance()
        if opened.has("token_activations", layer=shown.id.layer):
            tables["token_activations"] = shown.token_activations()
        tables |= shown.through_lenses()
    if json:
        single = ("value", "activity", "importance")
        lists = {name: table.to_dicts() for name, table in tables.items()}
        rows = {name: next(iter(one), None) if name in single else one for name, one in lists.items()}
        about = {"memory": str(shown.id), "atlas": str(atlas), "part": opened.manifest.get("part")}
        emit({**about, **rows, "made_by": opened.made_by(memory=str(shown.id))})
        return
    from mnemoscope.cli.drawing import draw_memory

    draw_memory(opened, shown.id, tables, limit=limit)


def verify(
    atlas: arg.AtlasFolder,
    json: arg.Json = False,
) -> None:
    """Check completeness, hashes and schema of an atlas.

    Reads every byte that the atlas's manifest covers. Exits with 2 and the list of what is wrong.

    Example: mnemoscope verify atlas
    """
    from mnemoscope import atlas as store
    from mnemoscope.atlas.manifest import read_claimed

    with suppress(AtlasDamaged):  # one of the problems
        read_claimed(atlas)
    problems = store.verify(atlas)
    files = 0 if problems else len(store.open_atlas(atlas).manifest.hashes)
    if json:
        emit({"atlas": str(atlas), "ok": not problems, "problems": problems, "files": files})
    else:
        for problem in problems:
            print(problem)
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise AtlasDamaged(f"{atlas} is damaged ({count}): {problems[0]}")
    if not json:
        print(f"{atlas} is whole: {files} files are what was mined")
