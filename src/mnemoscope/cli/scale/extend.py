"""`mnemoscope extend`: adds optional tables to a finished atlas; `mnemoscope lens`: fits lenses in one."""

from mnemoscope.cli import arguments as arg
from mnemoscope.cli.progress import reporting
from mnemoscope.cli.runner import emit
from mnemoscope.foundation.options.mining_options import ExtendOptions, LensOptions, parse_kinds


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


def lens(options: LensOptions, *, json: bool) -> None:
    """Fit tuned and ridge lenses for lower layers.

    They are maps from every layer to the head, for its values and its stream. ridge: least squares, in closed form.
    tuned: trained to predict what the model predicts. Both are judged on held-out prefixes, and a layer at which one is
    no better than the plain readout keeps that. The atlas stores them; afterwards answer the question again:
    `mnemoscope analyze ATLAS lenses`. Ctrl-C saves; run it again to go on.

    Example: mnemoscope lens atlas --model gpt2
    """
    atlas, kinds = options.atlas, parse_kinds(options.kinds)
    arg.check_mined(atlas, options.model, options.opening)
    from mnemoscope.atlas import open_atlas
    from mnemoscope.mining.lenses.lens_pass import fit_lenses

    with reporting() as progress:
        result = fit_lenses(atlas, options.model, kinds, progress=progress, **options.taken_by(fit_lenses))
    if json:
        emit(
            {
                "atlas": str(atlas),
                "lenses": list(result.lenses),
                "fitted": list(result.fitted),
                "plain_layers": {name: list(layers) for name, layers in result.plain_layers.items()},
                "losses": {name: list(losses) for name, losses in result.losses.items()},
            }
        )
        return
    print(f"fitted: {', '.join(result.fitted) or 'nothing'}; in the atlas: {', '.join(result.lenses)}")
    words = open_atlas(atlas).reading.words
    asked = f"the {words['asked_token']} (nats, held-out {words['cases']})"
    print(f"cross-entropy of each layer's readout with {asked}:")
    for name, losses in result.losses.items():
        print(f"  {name:<6}" + " ".join(f"{loss:7.3f}" for loss in losses))
    print(f"answer the question again with `mnemoscope analyze {atlas} lenses`")
