"""The card of an atlas on the hub, its README.md: model, text, licences, proof, some numbers, memories, the command.

Names and texts are somebody's. None of them acts as markup: a text is escaped, a command is one indented line.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.manifest import mined_from
from mnemoscope.atlas.tables import mine_command
from mnemoscope.foundation.formatting import DASH, before_token, show_text, show_token
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.foundation.options.model_options import local_folder
from mnemoscope.patterns.labels import listed_labels
from mnemoscope.questions.answers import stored_answers
from mnemoscope.show.figures.examples import best_examples
from mnemoscope.show.figures.summary import describe_mining

# The questions whose first claim is a number of the card.
_ASKED = ("key_patterns", "key_removals", "value_confidence", "layer_activity", "refinement_events")
_MEMORIES, _TRIGGERS, _LONGEST = 3, 3, 200


def make_card(atlas: Atlas, repository: str, text_license: str) -> str:
    """The card as Markdown, behind the data that the hub reads."""
    from huggingface_hub import DatasetCardData

    model, corpus = atlas.manifest.model, atlas.manifest.corpus
    tables = [name for name in ("triggers", "values") if atlas.has(name)]
    configs = [{"config_name": name, "data_files": f"{name}/*.parquet"} for name in tables]
    about = DatasetCardData(license=text_license, tags=["mnemoscope", "interpretability"], configs=configs)
    errors = [f"{name} {error:.1g}" for name, error in sorted(model.proof.items()) if error is not None]
    facts = (
        ("model", model.spec),
        ("licence of the model, by its own file", model_license(atlas)),
        ("text", corpus.spec),
        ("licence of the text", text_license),
        ("proof at loading, largest errors", ", ".join(errors) or DASH),
    )
    answers = stored_answers(atlas)
    asked_of = [answer for one in _ASKED if not (answer := answers[one]).question.refusal(atlas)]
    asked = [(answer, answer.question.paper.claims[0]) for answer in asked_of]
    totals = [(claim.text, answer.total(claim.name), claim.paper) for answer, claim in asked]
    numbers = [(text, DASH if row is None else row.text_and_interval, paper) for text, row, paper in totals]
    some = [atlas.name(row["layer"], row["memory"]) for row in best_examples(atlas, _MEMORIES).to_dicts()]
    first = some[0] if some else atlas.name(atlas.layers[-1], 0)
    parts = (
        f"---\n{about.to_yaml()}\n---\n# Memories of {_plain(model.spec)}",
        " ".join(map(_plain, describe_mining(atlas))),
        _table(("", ""), facts),
        f"Files are fetched when they are read, and checked:\n\n    mnemoscope show hf://datasets/{repository} {first}",
        "## Some numbers\n\nThe last column is what the paper (Geva et al. 2021) says of a model of 16 layers.",
        _table(("claim", "here, with its 95 % interval", "paper"), numbers),
        "## Some memories",
        "\n".join(line for memory in some for line in _lines(atlas, memory)) or DASH,
        f"## Made by\n\n    {show_text(mine_command(Path('atlas'), atlas.manifest))}",
    )
    return "\n\n".join(parts) + "\n"


def model_license(atlas: Atlas) -> str:
    """What the model's own file says of its licence: a .gguf, or the card in its folder or on the hub; else unknown."""
    source, revision = mined_from(atlas.path).get("model", ""), atlas.manifest.model.revision
    with suppress(Exception):  # whatever a stranger's file holds
        if source.endswith(".gguf"):
            from gguf import GGUFReader

            return str(GGUFReader(Path(source)).fields["general.license"].contents())
        from huggingface_hub import hf_hub_download, metadata_load

        folder = local_folder(source)
        card = hf_hub_download(source, "README.md", revision=revision) if folder is None else folder / "README.md"
        stated: Any = (metadata_load(card) or {})["license"]
        return ", ".join(map(str, stated)) if isinstance(stated, list) else str(stated)
    return "unknown"


def _lines(atlas: Atlas, memory: MemoryId) -> Iterator[str]:
    """A memory with its label, and its best triggers, each with what is read or comes behind it."""
    yield f"* **{memory}**: {_plain(' '.join(listed_labels(atlas, [(memory, 1)]).values()))}"
    for row in atlas[memory].triggers().head(_TRIGGERS).to_dicts():
        before, token = show_text(before_token(row["prefix"], row["trigger_text"])), show_token(row["trigger_text"])
        after = f" then {_plain(DASH if row['next_text'] is None else show_token(row['next_text']))}"
        if not atlas.reading.causal:
            after = _plain(show_text(row["text"][len(row["prefix"]) :])[:_LONGEST])
        yield f"  * {_plain(before[-_LONGEST:])} **{_plain(token)}**{after}"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = (columns, ["---"] * len(columns), *([*map(_plain, row)] for row in rows))
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _plain(text: str) -> str:
    """The text in Markdown, where nothing in it is markup, a link or a control code."""
    return re.sub(r"([\\`*_{}\[\]()#+!|~$=:@.])", r"\\\1", escape(show_text(text.replace("\u00a0", " ")), quote=False))
