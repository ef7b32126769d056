"""`mnemoscope audit`: whether a model memorised strings, and which memories carry them."""

import sys
from dataclasses import asdict
from pathlib import Path

from mnemoscope.cli import arguments as arg
from mnemoscope.cli.progress import load_shown, reporting
from mnemoscope.cli.runner import emit
from mnemoscope.foundation.options.declared import option
from mnemoscope.foundation.options.mining_options import LoadOptions
from mnemoscope.foundation.options.model_options import ModelArgument, check_names
from mnemoscope.foundation.options.prompt_options import AuditOptions


class AuditedStrings(ModelArgument):
    secrets: Path = option(help="The strings, one a line, UTF-8.", metavar="FILE")
    atlas: Path | None = option(None, "An atlas of this model: its held-out sentences serve for side effects.")
    audit: AuditOptions
    loading: LoadOptions


def audit(options: AuditedStrings, *, json: bool) -> None:
    """Ask a model for strings that it may have memorised.

    Each string's log probability, its rank among random strings of its form (exposure in bits), whether its first half
    gives the rest, the memories that carry it, and what switching them off does to it and to other text. Of a model
    that `train --plant` made also the recall by repetitions, and the false alarms.

    Example: mnemoscope audit builtin:pydocs --secrets strings.txt --vary digits
    """
    from mnemoscope.corpus.sources.secrets import read_secrets

    check_names(options.model, options.loading.opening)
    strings = read_secrets(options.secrets)
    arg.check_atlases(options.atlas)
    from mnemoscope.auditing import audit as run
    from mnemoscope.auditing.recall import plants_of, recall

    for note in strings.notes:
        print(note, file=sys.stderr)
    loaded = load_shown(options.model, options.loading)
    with reporting() as progress:
        audited = run(loaded, strings.texts, progress=progress, **options.taken_by(run))
    plants = plants_of(options.model)
    rows = recall(audited.verdicts(), plants) if plants else []
    if json:
        emit({**audited.to_dict(), "recall": [asdict(row) for row in rows]})
        return
    print(audited)
    if rows:
        print("\n".join(["", *map(str, rows)]))
