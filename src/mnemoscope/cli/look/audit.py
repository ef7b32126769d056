"""`mnemoscope audit`: whether a model memorised strings, and which memories carry them."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from mnemoscope.cli import arguments as arg
from mnemoscope.cli.progress import loading, reporting
from mnemoscope.cli.runner import emit
from mnemoscope.foundation.options.mining_options import AUTO
from mnemoscope.foundation.options.model_options import ModelOptions, check_names


def audit(
    model: arg.Model,
    secrets: Annotated[
        Path, typer.Option("--secrets", metavar="FILE", help="The strings, one a line, UTF-8.", show_default=False)
    ],
    atlas: Annotated[
        Path | None,
        typer.Option(metavar="ATLAS", help="An atlas of this model: its held-out sentences serve for side effects."),
    ] = None,
    alternatives: Annotated[int, typer.Option(metavar="N", help="Random strings of the same form beside each.")] = 999,
    vary: Annotated[
        str, typer.Option(metavar="all|digits", help="What is random in them: digits and letters, or only digits.")
    ] = "all",
    candidates: Annotated[int, typer.Option(metavar="N", help="Memories switched off one by one.")] = 16,
    top: Annotated[int, typer.Option(metavar="K", help="Memories switched off together.")] = 4,
    neighbours: Annotated[
        int, typer.Option(metavar="N", help="Texts, at most, on which side effects are measured.")
    ] = 200,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the alternatives and the control memories.")] = 0,
    dtype: arg.Dtype = "float32",
    device: arg.Device = AUTO,
    *,
    opening: ModelOptions,
    json: arg.Json = False,
) -> None:
    """Ask a model for strings that it may have memorised.

    Each string's log probability, its rank among random strings of its form (exposure in bits), whether its first half
    gives the rest, the memories that carry it, and what switching them off does to it and to other text. Of a model
    that `train --plant` made also the recall by repetitions, and the false alarms.

    Example: mnemoscope audit builtin:pydocs --secrets strings.txt --vary digits
    """
    arg.at_least(0, seed=seed)
    from mnemoscope.corpus.sources.secrets import read_secrets
    from mnemoscope.foundation.options.audit_options import AuditOptions

    options = AuditOptions(alternatives, vary, candidates, top, seed, neighbours)
    check_names(model, opening)
    strings = read_secrets(secrets)
    arg.check_atlases(atlas)
    from mnemoscope.atlas import open_atlas
    from mnemoscope.auditing import audit as run_audit
    from mnemoscope.auditing.recall import plants_of, recall
    from mnemoscope.models import load_model

    opened = None if atlas is None else open_atlas(atlas)
    for note in strings.notes:
        print(note, file=sys.stderr)
    with loading(model):
        loaded = load_model(model, dtype=dtype, device=device, **opening.keywords())
    with reporting() as progress:
        audited = run_audit(loaded, strings.texts, options=options, atlas=opened, progress=progress)
    plants = plants_of(model)
    rows = recall(audited.verdicts(), plants) if plants else []
    if json:
        emit({**audited.to_dict(), "recall": [asdict(row) for row in rows]})
        return
    print(audited)
    if rows:
        print("\n".join(["", *map(str, rows)]))
