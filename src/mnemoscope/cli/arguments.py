"""Checks of arguments that several verbs have, before anything is loaded."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from mnemoscope.errors import AtlasExists
from mnemoscope.foundation.files import refuse_hub
from mnemoscope.foundation.options.mining_options import MiningOptions
from mnemoscope.foundation.options.model_options import ModelOptions, check_names

if TYPE_CHECKING:
    from mnemoscope.atlas.manifest import MinedMemories


def check_folder(out: Path) -> str:
    """What is in the folder (`Occupancy`)."""
    refuse_hub(out)
    if not out.exists():
        return "free"
    from mnemoscope.atlas.folder import occupancy

    holds = occupancy(out)
    if holds == "foreign":
        raise AtlasExists(f"{out} holds something that is not an atlas; choose another folder")
    return holds


def check_atlases(*atlases: Path | None) -> None:
    """Raises what opening the atlases raises of their folders and manifests, before anything is loaded; None passes."""
    from mnemoscope.atlas.manifest import read_manifest

    for atlas in atlases:
        if atlas is not None:
            read_manifest(atlas)


def memories_of(atlas: Path) -> "MinedMemories":
    """The memories that the atlas has, by its manifest; raises what opening the atlas raises."""
    from mnemoscope.atlas.manifest import MinedMemories, read_manifest

    return MinedMemories(atlas, read_manifest(atlas))


def check_mined(atlas: Path, model: str | None, opening: ModelOptions) -> None:
    """Raises what opening the atlas raises, and ModelNotFound for a model that cannot be there."""
    check_atlases(atlas)
    if model is not None:
        from mnemoscope.atlas.manifest import open_as_mined

        check_names(*open_as_mined(atlas, model, opening))


def check_text(spec: str | os.PathLike[str] | None, options: MiningOptions) -> None:
    """Raises what opening a text raises; a data set of the hub is looked for later."""
    from mnemoscope.corpus.sources.opening import BUILT_IN, open_source

    if spec is not None and not str(spec).startswith("hub:") and spec not in BUILT_IN:
        open_source(
            str(spec),
            text_field=options.text_field,
            ids_field=options.ids_field,
            split=options.cut,
            source_field=options.source_field,
        )
