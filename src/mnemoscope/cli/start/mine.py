"""`mnemoscope mine`: makes an atlas from a model and a text; `mnemoscope merge`: joins the parts of one plan.

Checks that need no loading come first. At the end both print the atlas's path, its contents and the next commands.
"""

from pathlib import Path
from typing import Annotated

import typer

from mnemoscope.cli import arguments as arg
from mnemoscope.cli.mined import summarise
from mnemoscope.cli.progress import reporting
from mnemoscope.cli.scale.fleet import is_for_workers, mine_with_fleet
from mnemoscope.errors import AtlasExists
from mnemoscope.foundation.options.fleet_options import FleetOptions
from mnemoscope.foundation.options.mining_options import (
    TRIGGERS,
    TRIGGERS_OF_EXPERTS,
    MiningOptions,
    parse_layers,
    parse_part,
    parse_removals,
)
from mnemoscope.foundation.options.model_options import ModelOptions, check_names, display_name, full_name


def mine(
    model: arg.Model,
    corpus: Annotated[
        str,
        typer.Argument(
            metavar="CORPUS",
            help="builtin:pydocs, a .txt, .jsonl (.ndjson, .json) or .parquet file (also .gz, .xz, .zst) or a quoted"
            " glob, or hub:DATASET[:CONFIG[:SPLIT]].",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="ATLAS", help="The folder to make.", show_default=False)],
    validation: Annotated[
        str | None, typer.Option(metavar="CORPUS", help="The text for questions on held-out prefixes.")
    ] = None,
    split: arg.Split = MiningOptions.split,
    triggers: Annotated[
        int | None,
        typer.Option(
            metavar="N", help=f"Triggers per memory and sign; {TRIGGERS}, with experts {TRIGGERS_OF_EXPERTS}."
        ),
    ] = None,
    per_sentence: Annotated[str, typer.Option(metavar="1|all", help="Triggers that one sentence may give.")] = "1",
    layers: arg.Layers = None,
    sample: arg.Sample = None,
    max_sentences: Annotated[int | None, typer.Option(metavar="N", help="Stop after so many sentences.")] = None,
    max_tokens: Annotated[int | None, typer.Option(metavar="N", help="Stop after so many tokens.")] = None,
    prefixes: Annotated[
        int, typer.Option(metavar="N", help="Held-out prefixes to ask questions on.")
    ] = MiningOptions.prefixes,
    removals: Annotated[str | None, typer.Option(metavar="N|all", help="Memories per layer for token removal.")] = None,
    neighbours: Annotated[
        int, typer.Option(metavar="N", help="Most similar values kept of each memory; 0 compares none.")
    ] = MiningOptions.neighbours,
    part: Annotated[str | None, typer.Option(metavar="I/N", help="Only every N-th batch; join with merge.")] = None,
    batch_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Padded tokens per batch.  [default: from the model's sizes]")
    ] = None,
    dtype: arg.Dtype = MiningOptions.dtype,
    device: arg.Device = MiningOptions.device,
    seed: Annotated[int, typer.Option(metavar="N", help="For the random samples.")] = MiningOptions.seed,
    checkpoint_every: arg.CheckpointEvery = MiningOptions.checkpoint_every,
    keep_work: Annotated[bool, typer.Option("--keep-work", help="Keep the working copy of the text.")] = False,
    text_field: arg.TextField = MiningOptions.text_field,
    ids_field: arg.IdsField = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="The model's name as readers see it.")] = None,
    text_name: Annotated[str | None, typer.Option(metavar="NAME", help="The text's name as readers see it.")] = None,
    skip_bad_rows: arg.SkipBadRows = 0,
    skip_special: Annotated[bool, typer.Option("--skip-special", help="Special tokens are never triggers.")] = False,
    token_activations: Annotated[
        bool, typer.Option("--token-activations", help="Keep activations at every token of the best examples.")
    ] = False,
    random: Annotated[bool, typer.Option("--random", help="Draw examples of every memory at random, too.")] = False,
    *,
    opening: ModelOptions,
    accept_versions: arg.AcceptVersions = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a finished atlas.")] = False,
    workers: Annotated[
        str | None, typer.Option(metavar="N|auto", help="Mine with so many processes; auto: one for every card.")
    ] = None,
    gpus_per_worker: Annotated[
        int | None, typer.Option(metavar="N", help="Cards of every worker.  [default: 1 where they run on cards]")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(metavar="[ADDRESS]", help="Mine with Ray actors, here or on the cluster of that address."),
    ] = None,
    prepare: Annotated[
        bool, typer.Option("--prepare", help="Only read the text and write the plan, for `mnemoscope worker`.")
    ] = False,
    launch: Annotated[
        str | None, typer.Option(metavar="slurm", help="Submit jobs that prepare, mine and merge.")
    ] = None,
    print_: Annotated[bool, typer.Option("--print", help="With --launch: print the jobs, submit nothing.")] = False,
    allow_mixed_devices: Annotated[
        bool, typer.Option("--allow-mixed-devices", help="Allow different kinds of cards: equal to tolerance.")
    ] = False,
    json: arg.Json = False,
) -> None:
    """Mine a text for a model's memories; makes an atlas.

    Finds the triggers, the activity and the value of every feed-forward memory. Continues by itself if ATLAS is
    unfinished and the plan is the same; says so if it is finished. Ctrl-C saves; run it again to go on.

    Example: mnemoscope mine gpt2 wiki.txt --out atlas
    """
    arg.one_of(("1", "all"), per_sentence=per_sentence)
    arg.at_least(1, triggers=triggers, max_sentences=max_sentences, max_tokens=max_tokens, batch_tokens=batch_tokens)
    arg.at_least(
        0,
        prefixes=prefixes,
        neighbours=neighbours,
        checkpoint_every=checkpoint_every,
        seed=seed,
        skip_bad_rows=skip_bad_rows,
    )
    options = MiningOptions(
        validation=validation,
        split=split,
        triggers=triggers,
        per_sentence="all" if per_sentence == "all" else 1,
        layers=None if layers is None else parse_layers(layers),
        sample=sample,
        max_sentences=max_sentences,
        max_tokens=max_tokens,
        prefixes=prefixes,
        removals=None if removals is None else parse_removals(removals),
        neighbours=neighbours,
        part=None if part is None else parse_part(part),
        batch_tokens=batch_tokens,
        dtype=dtype,
        device=device,
        seed=seed,
        checkpoint_every=checkpoint_every,
        keep_work=keep_work,
        text_field=text_field,
        ids_field=ids_field,
        name=name,
        text_name=text_name,
        skip_bad_rows=skip_bad_rows,
        skip_special=skip_special,
        token_activations=token_activations,
        random=random,
        opening=opening,
        accept_versions=accept_versions,
        force=force,
    )
    fleet = FleetOptions(
        workers=workers,
        gpus_per_worker=gpus_per_worker,
        ray=ray,
        prepare=prepare,
        launch=launch,
        print=print_,
        allow_mixed_devices=allow_mixed_devices,
    )
    if launch is None:  # its jobs look on their own machine
        check_names(model, opening)
        _check_finished(out, options, model, corpus)
        for text in (corpus, validation):
            arg.check_text(text, text_field=text_field, ids_field=ids_field, split=options.cut)
    if is_for_workers(out, fleet):
        mine_with_fleet(model, corpus, out, options, fleet, json=json)
    else:
        from mnemoscope import mining
        from mnemoscope.cluster.single_run import telling_status

        with reporting() as progress, telling_status(out, progress) as telling:
            made = mining.run_mining(model, corpus, out, options, progress=telling)
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


def merge(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder of the new atlas.", show_default=False)],
    parts: Annotated[list[Path], typer.Argument(metavar="PART...", help="Every part of one plan.", show_default=False)],
    model: Annotated[str | None, typer.Option(metavar="MODEL", help="The plan's model, if it has moved.")] = None,
    *,
    opening: ModelOptions,
    accept_versions: arg.AcceptVersions = False,
    allow_mixed_devices: Annotated[
        bool, typer.Option("--allow-mixed-devices", help="Join parts of different kinds of processors or cards, too.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a finished atlas or one with other options.")] = False,
    json: arg.Json = False,
) -> None:
    """Join the parts of one plan into one atlas.

    Parts are made by `mine --part I/N`. Every table is byte-identical to that of a single run.
    Parts of different plans, and a missing or repeated part, are refused by name. Ctrl-C saves; run it again to go on.
    The model is opened as in the plan, except for the options given here.

    Example: mnemoscope merge atlas part-1 part-2 part-3
    """
    arg.check_folder(out)
    arg.check_atlases(*parts)
    from mnemoscope import mining

    with reporting() as progress:
        made = mining.merge(
            out,
            parts,
            model=model,
            accept_versions=accept_versions,
            allow_mixed_devices=allow_mixed_devices,
            force=force,
            progress=progress,
            **opening.keywords(),
        )
    summarise(Path(made), json=json)
