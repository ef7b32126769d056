"""The data of the overview: what was mined and how, the answers in plain sentences, and memories to begin with."""

import json
from typing import Any

from mnemoscope.analyses import QUESTIONS, striking
from mnemoscope.analyses.writing import SIDE, files
from mnemoscope.atlas.manifest import RUN
from mnemoscope.atlas.side import covered
from mnemoscope.memory import MemoryId
from mnemoscope.web.site import Site
from mnemoscope.web.views.columns import words
from mnemoscope.web.views.triggers import grouped, triggers_view

STRIKING = 10


def overview_view(site: Site) -> dict[str, Any]:
    """Model, text, plan, run, the totals of every question, warnings, and the most striking memories."""
    manifest = site.atlas.manifest
    model, corpus = manifest["model"], manifest["corpus"]
    answered = {question: _totals(site, question) for question in QUESTIONS}
    return {
        "model": {
            name: model.get(name) for name in ("spec", "revision", "fingerprint", "family", "block", "activation")
        }
        | {"sizes": model["sizes"]},
        "text": {name: corpus.get(name) for name in ("spec", "fingerprint", "counts", "held_out_share", "overlap")},
        "plan": manifest["plan"],
        "finished": _run(site).get("finished"),
        "package": manifest.get("package"),
        "atlas": site.hash,
        "layers": [{"layer": layer, "memories": site.atlas.memories(layer)} for layer in site.atlas.layers],
        "memories": sum(site.atlas.memories(layer) for layer in site.atlas.layers),
        "answers": {question: totals for question, totals in answered.items() if totals is not None},
        "unanswered": [question for question, totals in answered.items() if totals is None],
        "striking": [_striking(site, row) for row in striking(site.atlas, STRIKING).to_dicts()],
    }


def overview_words(site: Site, data: dict[str, Any]) -> dict[str, Any]:
    """What the template needs besides: the report's sentences, where all questions are answered."""
    # The room of figures loads the drawing library; only this page needs it.
    from mnemoscope.figures.gathering import gathered
    from mnemoscope.figures.summary import cards, mined, warnings

    if data["unanswered"]:
        return {"mined": mined(site.atlas), "cards": [], "warnings": warnings(site.atlas)}
    found = cards(site.atlas, gathered(site.atlas, keep=False).answers)
    return {"mined": found[0].sentences, "cards": found[1:], "warnings": warnings(site.atlas)}


def _run(site: Site) -> dict[str, Any]:
    """When it was mined; no hash covers this, so nothing depends on it."""
    try:
        said = json.loads((site.atlas.path / RUN).read_bytes())
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _totals(site: Site, question: str) -> list[dict[str, Any]] | None:
    """The totals of an answer that was made from this atlas; None where there is none."""
    path = files(question)[0]
    if path not in covered(site.atlas.path, SIDE):
        return None
    try:
        said = json.loads((site.atlas.path / path).read_bytes())
        return list(said["totals"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _striking(site: Site, row: dict[str, Any]) -> dict[str, Any]:
    """A striking memory with its best trigger, one that is followed by what the value says if there is one."""
    name = MemoryId(row["layer"], row["memory"])
    groups = grouped(triggers_view(site, name, patterns=()), 1, says=row["top_token"])
    shown = next((group for group in groups if group["foretold"]), groups[0])
    return {
        "memory": str(name),
        "says": words(site).token(row["top_token"]),
        "agreement": row["agreement"],
        "max_probability": row["max_probability"],
        "prefixes": row["prefixes"],
        "example": {name: shown[name] for name in ("short_before", "token", "next", "foretold")},
    }
