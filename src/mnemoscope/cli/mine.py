"""`mnemoscope mine`: from a model and a text to an atlas. Checks what can be checked without loading anything."""

from pathlib import Path
from typing import Annotated, Any

import typer

from mnemoscope.cli.frame import Debug, Json, at_least, one_of
from mnemoscope.cli.model_options import AcceptVersions, Device, Dictionary, Dtype, Model, Revision, TrustRemoteCode
from mnemoscope.cli.progress import reporting
from mnemoscope.dtypes import DTYPES
from mnemoscope.errors import OptionError
from mnemoscope.mining_options import MiningOptions, parse_layers, parse_part, parse_removals


def _not_yet(value: Any) -> Any:
    if value:
        raise OptionError(
            "mining on several machines (--ray, --workers) is not available yet; use --part I/N and merge"
        )
    return value


def mine(
    model: Model,
    corpus: Annotated[
        str,
        typer.Argument(
            metavar="CORPUS",
            help="builtin:pydocs, a .txt, .jsonl or .parquet file (also .gz, .xz, .zst) or a quoted glob,"
            " or hub:DATASET[:CONFIG[:SPLIT]].",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="ATLAS", help="The folder to make.", show_default=False)],
    validation: Annotated[
        str | None, typer.Option(metavar="CORPUS", help="The text for questions on held-out prefixes.")
    ] = None,
    split: Annotated[
        str, typer.Option(metavar="sentence|line|document", help="What one text is.")
    ] = MiningOptions.split,
    triggers: Annotated[int, typer.Option(metavar="N", help="Triggers per memory and sign.")] = MiningOptions.triggers,
    per_sentence: Annotated[str, typer.Option(metavar="1|all", help="Triggers that one sentence may give.")] = "1",
    layers: Annotated[str | None, typer.Option(metavar="0-3,7", help="Only these layers.  [default: all]")] = None,
    max_sentences: Annotated[int | None, typer.Option(metavar="N", help="Stop after so many sentences.")] = None,
    max_tokens: Annotated[int | None, typer.Option(metavar="N", help="Stop after so many tokens.")] = None,
    prefixes: Annotated[
        int, typer.Option(metavar="N", help="Held-out prefixes to ask questions on.")
    ] = MiningOptions.prefixes,
    removals: Annotated[str | None, typer.Option(metavar="N|all", help="Memories per layer for token removal.")] = None,
    part: Annotated[str | None, typer.Option(metavar="I/N", help="Only every N-th batch; join with merge.")] = None,
    batch_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Padded tokens per batch.  [default: from the model's sizes]")
    ] = None,
    dtype: Dtype = MiningOptions.dtype,
    device: Device = MiningOptions.device,
    seed: Annotated[int, typer.Option(metavar="N", help="For the random samples.")] = MiningOptions.seed,
    checkpoint_every: Annotated[
        float, typer.Option(metavar="SECONDS", help="How much work a sudden stop may cost.")
    ] = MiningOptions.checkpoint_every,
    keep_work: Annotated[bool, typer.Option("--keep-work", help="Keep the working copy of the text.")] = False,
    text_field: Annotated[
        str, typer.Option(metavar="NAME", help="The text's field in JSONL or Parquet.")
    ] = MiningOptions.text_field,
    revision: Revision = None,
    dictionary: Dictionary = None,
    trust_remote_code: TrustRemoteCode = False,
    accept_versions: AcceptVersions = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a finished atlas.")] = False,
    ray: Annotated[bool, typer.Option("--ray", hidden=True, is_eager=True, callback=_not_yet)] = False,
    workers: Annotated[str | None, typer.Option("--workers", hidden=True, is_eager=True, callback=_not_yet)] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Mine a text for a model's memories; makes an atlas.

    Finds the triggers, the activity and the value of every feed-forward memory. Continues by itself if ATLAS is
    unfinished and the plan is the same. Ctrl-C saves; run it again to go on.

    Example: mnemoscope mine gpt2 wiki.txt --out atlas
    """
    one_of("--split", split, ("sentence", "line", "document"))
    one_of("--per-sentence", per_sentence, ("1", "all"))
    one_of("--dtype", dtype, DTYPES)
    at_least("--triggers", triggers, 1)
    at_least("--max-sentences", max_sentences, 1)
    at_least("--max-tokens", max_tokens, 1)
    at_least("--prefixes", prefixes, 0)
    at_least("--batch-tokens", batch_tokens, 1)
    at_least("--checkpoint-every", checkpoint_every, 0)
    at_least("--seed", seed, 0)
    options = MiningOptions(
        validation=validation, split=split, triggers=triggers, per_sentence="all" if per_sentence == "all" else 1,
        layers=None if layers is None else parse_layers(layers), max_sentences=max_sentences, max_tokens=max_tokens,
        prefixes=prefixes, removals=None if removals is None else parse_removals(removals),
        part=None if part is None else parse_part(part), batch_tokens=batch_tokens, dtype=dtype, device=device,
        seed=seed, checkpoint_every=checkpoint_every, keep_work=keep_work, text_field=text_field, revision=revision,
        dictionary=dictionary, trust_remote_code=trust_remote_code, accept_versions=accept_versions, force=force,
    )  # fmt: skip
    from mnemoscope import mining
    from mnemoscope.cli.summary import summarise

    with reporting() as progress:
        made = mining.run_mining(model, corpus, out, options, progress=progress)
    summarise(Path(made), json=json)
