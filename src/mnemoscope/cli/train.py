"""`mnemoscope train`: the built-in language model, made again from its corpus."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from mnemoscope.cli.frame import Debug, Json, at_least, emit
from mnemoscope.cli.progress import reporting


def train(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="The folder of the model and its checkpoints.")
    ] = Path("mnemoscope-model"),
    steps: Annotated[int | None, typer.Option(metavar="N", help="Optimiser steps.  [default: the recipe's]")] = None,
    batch: Annotated[int | None, typer.Option(metavar="N", help="Windows per step.  [default: the recipe's]")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="[default: the recipe's]")] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="Such as cpu or cuda.")] = "cpu",
    checkpoint_every: Annotated[
        float, typer.Option(metavar="SECONDS", help="How much work a sudden stop may cost.")
    ] = 120.0,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Train the built-in language model again.

    Its text is the documentation on this machine: the language reference and the docstrings of the standard library
    and of the installed dependencies. Goes on from the last checkpoint in DIR. Ctrl-C saves.

    Example: mnemoscope train --out my-model
    """
    at_least("--checkpoint-every", checkpoint_every, 0)
    from mnemoscope.training import Recipe
    from mnemoscope.training import train as run_training

    given = {"steps": steps, "batch": batch, "seed": seed}
    recipe = Recipe(**{name: value for name, value in given.items() if value is not None})
    with reporting() as progress:

        def report(step: int, of: int, loss: float, rate: float) -> None:
            progress("training", step, of, f"loss {loss:.3f} nats per token, {rate:,.0f} tokens/s")

        made = run_training(out, recipe, device=device, checkpoint_every=checkpoint_every, say=_say, progress=report)
    if json:
        emit({"model": str(made), "steps": recipe.steps, "tokens": recipe.tokens})
    else:
        print(f"{made} is a model; mnemoscope mine {made} builtin:pydocs --out atlas mines it")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
