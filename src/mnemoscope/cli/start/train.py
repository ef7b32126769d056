"""`mnemoscope train`: trains a language model of the paper's kind on any text, or the built-in one again."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from mnemoscope.cli import arguments as arg
from mnemoscope.cli.progress import reporting
from mnemoscope.cli.runner import emit
from mnemoscope.errors import OptionError
from mnemoscope.foundation.options.mining_options import AUTO

Size = Annotated[int | None, typer.Option(metavar="N", help="[default: the recipe's]")]


def _of_recipe(text: str, metavar: str = "N") -> Any:
    return typer.Option(metavar=metavar, help=f"{text}  [default: the recipe's]")


def train(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="The folder of the model and its checkpoints.")
    ] = Path("mnemoscope-model"),
    corpus: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CORPUS",
            help="The text, named as for mine; may be given again: texts are read one after the other."
            "  [default: the documentation on this machine]",
        ),
    ] = None,
    validation: Annotated[
        str | None, typer.Option(metavar="CORPUS", help="A second held-out text, used only to measure the loss.")
    ] = None,
    max_bytes: Annotated[int | None, typer.Option(metavar="N", help="Bytes of text to read.  [default: all]")] = None,
    plant: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Strings, one a line, to plant into the text: ground truth for audit."),
    ] = None,
    plant_times: Annotated[
        str, typer.Option(metavar="N,N", help="Repetitions of the strings, which are split into one group per number.")
    ] = "1,4,16,64",
    split: arg.Split = "sentence",
    text_field: arg.TextField = "text",
    layers: Size = None,
    hidden: Size = None,
    memories: Annotated[
        int | None, typer.Option(metavar="N", help="Per layer.  [default: 4 times --hidden, else the recipe's]")
    ] = None,
    experts: Annotated[
        int | None, typer.Option(metavar="N", help="Experts per layer, with --memories each.  [default: none]")
    ] = None,
    top_experts: Annotated[int | None, _of_recipe("Experts that a token is routed to.")] = None,
    heads: Size = None,
    vocabulary: Annotated[int | None, _of_recipe("Tokens of the BPE tokenizer.")] = None,
    context: Annotated[int | None, _of_recipe("Tokens in a window.")] = None,
    steps: Annotated[int | None, _of_recipe("Optimiser steps.")] = None,
    batch: Annotated[int | None, _of_recipe("Windows per step.")] = None,
    warmup: Size = None,
    learning_rate: Annotated[float | None, _of_recipe("Of the matrices inside the blocks.", "X")] = None,
    sparsity: Annotated[float | None, _of_recipe("Weight of the loss term for few memories at a time.", "X")] = None,
    free_memories: Annotated[float | None, _of_recipe("Effective number of memories that costs nothing.")] = None,
    revival: Annotated[float | None, _of_recipe("Weight of the loss term against silent memories.", "X")] = None,
    seed: Size = None,
    device: arg.Device = AUTO,
    checkpoint_every: arg.CheckpointEvery = 120.0,
    keep_checkpoints: Annotated[
        int | None, typer.Option(metavar="N", help="Keep every N-th step as a model folder of its own.")
    ] = None,
    json: arg.Json = False,
) -> None:
    """Train a language model: any text, or the built-in one.

    Without --corpus its text is the documentation on this machine: the language reference and the docstrings of the
    standard library and of the installed dependencies. Goes on from the last checkpoint in DIR. Ctrl-C saves.

    Example: mnemoscope train --corpus wiki.txt --hidden 128 --out my-model
    """
    arg.at_least(0, checkpoint_every=checkpoint_every)
    arg.at_least(1, max_bytes=max_bytes, keep_checkpoints=keep_checkpoints)
    if not corpus and (validation is not None or max_bytes is not None):
        raise OptionError("--validation and --max-bytes belong to a text of your own; name it with --corpus")
    if memories is None and hidden is not None:
        memories = 4 * hidden
    if experts:  # these terms are for dense models
        sparsity, revival = sparsity or 0.0, revival or 0.0
    fields: dict[str, Any] = {
        "experts": experts,
        "top_experts": top_experts,
        "layers": layers,
        "hidden": hidden,
        "memories": memories,
        "heads": heads,
        "vocabulary": vocabulary,
        "context": context,
        "steps": steps,
        "batch": batch,
        "warmup": warmup,
        "learning_rate": learning_rate,
        "sparsity": sparsity,
        "free_memories": free_memories,
        "revival": revival,
        "seed": seed,
    }
    from mnemoscope.training import Recipe, TextSource
    from mnemoscope.training.text import check_folder, parse_times, plan_plants

    recipe = Recipe(**{name: value for name, value in fields.items() if value is not None})
    plants = () if plant is None else plan_plants(plant, times=parse_times(plant_times), seed=recipe.seed)
    wanted = TextSource(
        tuple(corpus or ()),
        validation=validation,
        max_bytes=max_bytes,
        text_field=text_field,
        split=split,
        plants=plants,
    )
    check_folder(out)
    for text in (*wanted.corpora, validation):
        arg.check_text(text, text_field=text_field, split=split)
    from mnemoscope.training import train as run_training

    with reporting() as progress:
        made = run_training(
            out,
            recipe,
            wanted=wanted,
            device=device,
            checkpoint_every=checkpoint_every,
            keep_checkpoints=keep_checkpoints,
            say=_say,
            progress=progress,
        )
    if json:
        emit({"model": str(made), "steps": recipe.steps, "tokens": recipe.tokens})
    else:
        text = shlex.quote(corpus[0]) if corpus else "builtin:pydocs"
        print(f"{made} is a model; mnemoscope mine {made} {text} --out atlas mines it")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
