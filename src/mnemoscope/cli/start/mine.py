"""`mnemoscope mine`: makes an atlas from a model and a text; `mnemoscope merge`: joins the parts of one plan.

Checks that need no loading come first. At the end both print the atlas's path, its contents and the next commands.
"""

from pathlib import Path

from mnemoscope.cli import arguments as arg
from mnemoscope.cli.mined import summarise
from mnemoscope.cli.progress import reporting
from mnemoscope.cli.scale.fleet import is_for_workers, mine_with_fleet
from mnemoscope.errors import AtlasExists
from mnemoscope.foundation.options.declared import DeclaredOptions, like, option
from mnemoscope.foundation.options.fleet_options import FleetOptions
from mnemoscope.foundation.options.mining_options import MiningOptions
from mnemoscope.foundation.options.model_options import (
    ModelArgument,
    ModelOptions,
    check_names,
    display_name,
    full_name,
)


class MineOptions(ModelArgument):
    corpus: str = option(
        help="builtin:pydocs, a .txt, .jsonl (.ndjson, .json) or .parquet file (also .gz, .xz, .zst) or a quoted glob,"
        " or hub:DATASET[:CONFIG[:SPLIT]].",
        argument=True,
    )
    out: Path = option(help="The folder to make.", metavar="ATLAS")
    mining: MiningOptions
    fleet: FleetOptions


def mine(options: MineOptions, *, json: bool) -> None:
    """Mine a text for a model's memories; makes an atlas.

    Finds the triggers, the activity and the value of every feed-forward memory. Continues by itself if ATLAS is
    unfinished and the plan is the same; says so if it is finished. Ctrl-C saves; run it again to go on.

    Example: mnemoscope mine gpt2 wiki.txt --out atlas
    """
    model, corpus, out, mining, fleet = options.model, options.corpus, options.out, options.mining, options.fleet
    if fleet.launch is None:  # its jobs look on their own machine
        check_names(model, mining.opening)
        _check_finished(out, mining, model, corpus)
        for text in (corpus, mining.validation):
            arg.check_text(text, mining)
    if is_for_workers(out, fleet):
        mine_with_fleet(model, corpus, out, mining, fleet, json=json)
    else:
        from mnemoscope.cluster.single_run import telling_status
        from mnemoscope.mining import run_mining

        with reporting() as progress, telling_status(out, progress) as telling:
            made = run_mining(model, corpus, out, mining, progress=telling)
        summarise(made, json=json)


def _check_finished(out: Path, options: MiningOptions, model: str, corpus: str) -> None:
    """Raises AtlasExists if the folder holds something that is not an atlas, or is one of another text or model."""
    if arg.check_folder(out) != "finished" or options.force:
        return
    from mnemoscope.atlas.manifest import plan_of

    plan = plan_of(out)
    shown = Path(model).stem if model.endswith(".gguf") else display_name(full_name(model))
    names = {"corpus": options.text_name or display_name(corpus, of_text=True), "model": options.name or shown}
    if names != {name: plan.get(name) for name in names}:
        raise AtlasExists(f"{out} is finished already; choose another folder, or --force to mine it again")


class MergeOptions(DeclaredOptions):
    out: Path = option(help="The folder of the new atlas.", argument=True)
    parts: list[Path] = option(help="Every part of one plan.", metavar="PART...", argument=True)
    model: str | None = option(None, "The plan's model, if it has moved.")
    opening: ModelOptions
    accept_versions: bool = like(MiningOptions, "accept_versions")
    allow_mixed_devices: bool = option(False, "Join parts of different kinds of processors or cards, too.")
    force: bool = option(False, "Replace a finished atlas or one with other options.")


def merge(options: MergeOptions, *, json: bool) -> None:
    """Join the parts of one plan into one atlas.

    Parts are made by `mine --part I/N`. Every table is byte-identical to that of a single run.
    Parts of different plans, and a missing or repeated part, are refused by name. Ctrl-C saves; run it again to go on.
    The model is opened as in the plan, except for the options given here.

    Example: mnemoscope merge atlas part-1 part-2 part-3
    """
    arg.check_folder(options.out)
    arg.check_atlases(*options.parts)
    from mnemoscope import mining

    with reporting() as progress:
        made = mining.merge(options.out, options.parts, progress=progress, **options.taken_by(mining.merge))
    summarise(Path(made), json=json)
