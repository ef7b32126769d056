"""`mnemoscope extend`: adds optional tables to a finished atlas."""

from mnemoscope.cli import arguments as arg
from mnemoscope.cli.progress import reporting
from mnemoscope.cli.runner import emit
from mnemoscope.foundation.options.mining_options import ExtendOptions


def extend(options: ExtendOptions, *, json: bool) -> None:
    """Make optional tables in a finished atlas.

    They serve patterns and the questions beyond the paper's, and need the model. The atlas stays as it is;
    extensions/manifest.json covers what is added. Ctrl-C saves; run it again to go on.

    Example: mnemoscope extend atlas --model gpt2
    """
    atlas, tables = options.atlas, options.tables or ()
    from mnemoscope.atlas.schema import check_optional

    check_optional(tables)
    arg.check_mined(atlas, options.model, options.opening)
    from mnemoscope.mining import extend as extended

    with reporting() as progress:
        extension = extended(atlas, options.model, tables, progress=progress, **options.taken_by(extended))
    if json:
        emit({"atlas": str(atlas), "made": list(extension.made), "kept": list(extension.kept)})
        return
    for word, names in (("made", extension.made), ("already there", extension.kept)):
        if names:
            print(f"{word}: {', '.join(names)}")
    if extension.made:
        patterns = " --patterns" if "similar_words" in extension.made else ""
        print(f"answer the questions again with `mnemoscope analyze {atlas}{patterns}`")
