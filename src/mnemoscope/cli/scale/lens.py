"""`mnemoscope lens`: fits translators from every layer to the head in a finished atlas."""

from typing import Annotated

import typer

from mnemoscope.cli import arguments as arg
from mnemoscope.cli.progress import reporting
from mnemoscope.cli.runner import emit
from mnemoscope.foundation.options.mining_options import AUTO, LENS_KINDS, LENS_TOKENS, MiningOptions
from mnemoscope.foundation.options.model_options import ModelOptions


def lens(
    atlas: arg.AtlasFolder,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="The model that was mined.  [default: as mined]")
    ] = None,
    kind: Annotated[str, typer.Option("--kind", metavar="ridge,tuned", help="The lenses to fit.")] = "ridge,tuned",
    max_tokens: Annotated[
        int, typer.Option(metavar="N", help="Fit on so many tokens of the atlas's sentences, at most.")
    ] = LENS_TOKENS,
    device: arg.Device = AUTO,
    *,
    opening: ModelOptions,
    checkpoint_every: arg.CheckpointEvery = MiningOptions.checkpoint_every,
    force: Annotated[bool, typer.Option("--force", help="Fit lenses again that the atlas has.")] = False,
    json: arg.Json = False,
) -> None:
    """Fit tuned and ridge lenses for lower layers.

    They are maps from every layer to the head, for its values and its stream. ridge: least squares, in closed form.
    tuned: trained to predict what the model predicts. Both are judged on held-out prefixes, and a layer at which one is
    no better than the plain readout keeps that. The atlas stores them; afterwards answer the question again:
    `mnemoscope analyze ATLAS lenses`. Ctrl-C saves; run it again to go on.

    Example: mnemoscope lens atlas --model gpt2
    """
    arg.at_least(1, max_tokens=max_tokens)
    arg.at_least(0, checkpoint_every=checkpoint_every)
    kinds = [name.strip() for name in kind.split(",")]
    for one in kinds:
        arg.one_of(LENS_KINDS, kind=one)
    arg.check_mined(atlas, model, opening)
    from mnemoscope.mining.lenses.lens_pass import fit_lenses

    with reporting() as progress:
        result = fit_lenses(
            atlas,
            model,
            kinds,
            max_tokens=max_tokens,
            device=device,
            opening=opening,
            checkpoint_every=checkpoint_every,
            force=force,
            progress=progress,
        )
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
    print("cross-entropy of each layer's readout with the next token (nats, held-out prefixes):")
    for name, losses in result.losses.items():
        print(f"  {name:<6}" + " ".join(f"{loss:7.3f}" for loss in losses))
    print(f"answer the question again with `mnemoscope analyze {atlas} lenses`")
