"""`mnemoscope extend`: adds optional tables to a finished atlas."""

from typing import Annotated

import typer

from mnemoscope.cli import arguments as arg
from mnemoscope.cli.progress import reporting
from mnemoscope.cli.runner import emit
from mnemoscope.foundation.options.mining_options import AUTO, MiningOptions
from mnemoscope.foundation.options.model_options import ModelOptions


def extend(
    atlas: arg.AtlasFolder,
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TABLE", help="Such as roles; if none is named all missing ones but samples and random."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="The model that was mined.  [default: as mined]")
    ] = None,
    device: arg.Device = AUTO,
    *,
    opening: ModelOptions,
    text: Annotated[
        str | None, typer.Option("--text", metavar="CORPUS", help="Where the text lies now, for random.")
    ] = None,
    validation: Annotated[str | None, typer.Option(metavar="CORPUS", help="The same of its validation text.")] = None,
    checkpoint_every: arg.CheckpointEvery = MiningOptions.checkpoint_every,
    force: Annotated[bool, typer.Option("--force", help="Make tables again that were added after mining.")] = False,
    json: arg.Json = False,
) -> None:
    """Make optional tables in a finished atlas.

    They serve patterns and the questions beyond the paper's, and need the model. The atlas stays as it is;
    extensions/manifest.json covers what is added. Ctrl-C saves; run it again to go on.

    Example: mnemoscope extend atlas --model gpt2
    """
    arg.at_least(0, checkpoint_every=checkpoint_every)
    from mnemoscope.atlas.schema import check_optional

    check_optional(tables or ())
    arg.check_mined(atlas, model, opening)
    from mnemoscope.mining import extend as extended

    with reporting() as progress:
        extension = extended(
            atlas,
            model,
            tables or (),
            device=device,
            opening=opening,
            text=text,
            validation=validation,
            checkpoint_every=checkpoint_every,
            force=force,
            progress=progress,
        )
    if json:
        emit({"atlas": str(atlas), "made": list(extension.made), "kept": list(extension.kept)})
        return
    for word, names in (("made", extension.made), ("already there", extension.kept)):
        if names:
            print(f"{word}: {', '.join(names)}")
    if extension.made:
        patterns = " --patterns" if "similar_words" in extension.made else ""
        print(f"answer the questions again with `mnemoscope analyze {atlas}{patterns}`")
