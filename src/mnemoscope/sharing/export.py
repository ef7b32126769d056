"""Writes an atlas's memories in a form that other programs read, as a folder of files.

`jsonl` is a line for each memory, the document of `show --json`; `neuronpedia` are SAEDashboard's batches
(neuronpedia.py). Memories are read and written a few at a time. Sends nothing anywhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.atlas.memory_document import documents_of
from mnemoscope.foundation.files import json_bytes
from mnemoscope.foundation.formatting import json_line
from mnemoscope.foundation.memory_names import NamedMemories
from mnemoscope.foundation.options.mining_options import ExportOptions
from mnemoscope.foundation.progress import Progress, report_to
from mnemoscope.sharing.neuronpedia import batches
from mnemoscope.show.export.folder import Contents, MadeFolder

ABOUT = "about.json"
"""What was exported, and from what; every export has it."""


@dataclass(frozen=True)
class AtlasExport:
    """What `export` wrote: the bytes of each of the `files`, by their paths in the `directory`."""

    directory: Path
    files: Mapping[str, int]
    memories: int


def export(
    atlas: Atlas | str | Path,
    out: str | Path,
    *,
    to: str,
    memories: str | None = None,
    progress: bool | Progress = True,
) -> AtlasExport:
    """Writes memories of an atlas into a folder, in place of an earlier export there.

    Raises OptionError for an unknown form, MemoryIdError, ModelDiffers for a list of another model's memories,
    AtlasUnfinished for `neuronpedia` of a part, AtlasExists for a folder of something else, AtlasDamaged, AtlasBusy,
    StoreFailed.

    Args:
        atlas: An atlas, or its folder.
        out: The folder to write.
        to: The form: jsonl (a line a memory, the document of `show --json`) or neuronpedia (SAEDashboard's batches).
        memories: The memories, `L3,L5.M0-19` or `@FILE`; None: all.
        progress: True: a bar in a terminal or notebook; or a function of stage, done, total (or None) and note.
    """
    ExportOptions.check({"to": to})
    opened = atlas if isinstance(atlas, Atlas) else open_atlas(atlas)
    numbers: dict[int, Sequence[int]] = {layer: range(opened.memories(layer)) for layer in opened.layers}
    if memories is not None:
        ids = groupby(sorted(NamedMemories.parse(memories).of(opened)), key=lambda one: one.layer)
        numbers = {layer: [opened.number(one) for one in ones] for layer, ones in ids}
    folder = MadeFolder(Path(out), opened.path, None, mark=ABOUT)
    folder.check("an export")
    count = sum(map(len, numbers.values()))
    shown = f"@{Path(memories[1:]).name}" if memories is not None and memories.startswith("@") else memories
    about = {
        "form": to,
        "model": opened.spec,
        "text": opened.manifest.corpus.spec,
        "part": opened.manifest.get("part"),
        "memories": count,
        "made_by": opened.made_by(to=to, memories=shown),
    }
    written = _documents if to == "jsonl" else batches
    with report_to(progress) as report:

        def contents() -> Contents:
            yield ABOUT, json_bytes(about)
            done = 0
            for layer, of_layer in numbers.items():
                report("export", done, count, "memories")
                yield from written(opened, layer, of_layer)
                done += len(of_layer)
            report("export", done, count, "memories")

        files = folder.replace(contents(), source=opened.manifest_hash)
    return AtlasExport(folder.directory, files, count)


def _documents(atlas: Atlas, layer: int, numbers: Sequence[int]) -> Contents:
    lines = (json_line(document.to_dict()) for document in documents_of(atlas, layer, numbers))
    yield f"layer-{layer:03}.jsonl", lines
