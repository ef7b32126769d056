"""`mnemoscope train`: trains a language model of the paper's kind on any text, or the built-in one again."""

import shlex
import sys
from functools import partial
from pathlib import Path

from mnemoscope.cli import arguments as arg
from mnemoscope.cli.progress import reporting
from mnemoscope.cli.runner import emit
from mnemoscope.errors import OptionError
from mnemoscope.foundation.options.declared import DeclaredOptions, like, option
from mnemoscope.foundation.options.mining_options import LoadOptions, MiningOptions
from mnemoscope.training.recipe import Recipe


class TrainOptions(DeclaredOptions):
    out: Path = option(Path("mnemoscope-model"), "The folder of the model and its checkpoints.", metavar="DIR")
    corpus: list[str] | None = option(
        None,
        "The text, named as for mine; may be given again: texts are read one after the other.",
        instead="the documentation on this machine",
    )
    validation: str | None = option(None, "A second held-out text, used only to measure the loss.", metavar="CORPUS")
    max_bytes: int | None = option(None, "Bytes of text to read.", least=1, instead="all")
    plant: Path | None = option(
        None, "Strings, one a line, to plant into the text: ground truth for audit.", metavar="FILE"
    )
    plant_times: str = option(
        "1,4,16,64", "Repetitions of the strings, which are split into one group per number.", metavar="N,N"
    )
    split: str = like(MiningOptions, "split")
    text_field: str = like(MiningOptions, "text_field")
    recipe: Recipe
    device: str = like(LoadOptions, "device")
    checkpoint_every: float = like(MiningOptions, "checkpoint_every", default=120.0)
    keep_checkpoints: int | None = option(None, "Keep every N-th step as a model folder of its own.", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.corpus and (self.validation is not None or self.max_bytes is not None):
            raise OptionError("--validation and --max-bytes belong to a text of your own; name it with --corpus")


def train(options: TrainOptions, *, json: bool) -> None:
    """Train a language model: any text, or the built-in one.

    Without --corpus its text is the documentation on this machine: the language reference and the docstrings of the
    standard library and of the installed dependencies. Goes on from the last checkpoint in DIR. Ctrl-C saves.

    Example: mnemoscope train --corpus wiki.txt --hidden 128 --out my-model
    """
    out, corpus, recipe = options.out, options.corpus, options.recipe
    from mnemoscope.training import TextSource
    from mnemoscope.training.text import check_folder, parse_times, plan_plants

    times = parse_times(options.plant_times)
    plants = () if options.plant is None else plan_plants(options.plant, times=times, seed=recipe.seed)
    wanted = TextSource(
        tuple(corpus or ()),
        validation=options.validation,
        max_bytes=options.max_bytes,
        text_field=options.text_field,
        split=options.split,
        plants=plants,
    )
    check_folder(out)
    for text in (*wanted.corpora, options.validation):
        arg.check_text(text, MiningOptions(text_field=options.text_field, split=options.split))
    from mnemoscope.training import train as run_training

    say = partial(print, file=sys.stderr, flush=True)
    with reporting() as progress:
        made = run_training(out, recipe, wanted=wanted, say=say, progress=progress, **options.taken_by(run_training))
    if json:
        emit({"model": str(made), "steps": recipe.steps, "tokens": recipe.tokens})
    else:
        text = shlex.quote(corpus[0]) if corpus else "builtin:pydocs"
        print(f"{made} is a model; mnemoscope mine {made} {text} --out atlas mines it")
