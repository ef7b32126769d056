"""`mnemoscope show`: one memory in the terminal; `mnemoscope verify`: whether an atlas is complete and unchanged."""

from contextlib import suppress

from mnemoscope.cli import arguments as arg
from mnemoscope.cli.runner import emit
from mnemoscope.errors import AtlasDamaged
from mnemoscope.foundation.options.declared import option
from mnemoscope.foundation.options.mining_options import AtlasArgument


class ShowOptions(AtlasArgument):
    memory: str = option(help="Such as L10.M222; several: L5.M0-19,L6.M1 or @FILE, a saved list.", argument=True)
    limit: int = option(20, "Prefixes to show of each sign (--json gives all).", least=1)


def show(options: ShowOptions, *, json: bool) -> None:
    """Show one memory in the terminal.

    Its triggers, its value over the vocabulary, its activity, and the memories with the most similar values.
    The trigger token of a prefix stands in «marks»; a space inside a token shows as · and a line break as ⏎.
    A prefix that occurs several times is shown once, with its count, and near-duplicates are folded under the best.
    In a terminal, tokens have the colour of the activation at them if the atlas has the table token_activations.

    Example: mnemoscope show atlas L10.M222
    """
    atlas, memory = options.atlas, options.memory
    from mnemoscope.foundation.memory_names import MemoryId, NamedMemories

    one = MemoryId.is_one(memory)
    named = NamedMemories.parse(memory)
    mined = arg.memories_of(atlas)
    names = [MemoryId.parse(memory)] if one else named.of(mined)
    mined.number(names[0])
    from mnemoscope.atlas import open_atlas
    from mnemoscope.atlas.memory_document import MemoryDocument

    opened = open_atlas(atlas)
    if json:
        documents = [MemoryDocument(opened, name).to_dict() for name in names]
        about = {"atlas": str(atlas), "part": opened.manifest.get("part"), "made_by": opened.made_by(memory=memory)}
        emit({**(documents[0] if one else {"memories": documents}), **about})
        return
    from mnemoscope.cli.drawing import draw_memory

    for number, name in enumerate(names):
        print("\n" if number else "", end="")
        draw_memory(MemoryDocument(opened, name), limit=options.limit)


def verify(options: AtlasArgument, *, json: bool) -> None:
    """Check completeness, hashes and schema of an atlas.

    Reads every byte that the atlas's manifest covers. Exits with 2 and the list of what is wrong.

    Example: mnemoscope verify atlas
    """
    atlas = options.atlas
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
