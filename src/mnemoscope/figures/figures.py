"""A figure for every question, in the paper's order: drawn, described, and put together as one specification each."""

from collections.abc import Callable, Mapping
from textwrap import wrap
from typing import Any

from mnemoscope.atlas.visible import without_controls
from mnemoscope.figures import figures_of_keys, figures_of_layers, figures_of_refinement, figures_of_values
from mnemoscope.figures.answered import Answered
from mnemoscope.figures.chart import Figure
from mnemoscope.figures.panels import assembled

TITLE = 72
"""Characters of a line of a figure's title: as wide as its panels."""

FIGURES: dict[str, Callable[[Mapping[str, Answered]], Figure]] = {
    "key_patterns": figures_of_keys.key_patterns,
    "key_removals": figures_of_keys.key_removals,
    "value_agreement": figures_of_values.value_agreement,
    "value_rank": figures_of_values.value_rank,
    "value_confidence": figures_of_values.value_confidence,
    "layer_activity": figures_of_layers.layer_activity,
    "layer_composition": figures_of_layers.layer_composition,
    "refinement_match": figures_of_refinement.refinement_match,
    "refinement_confidence": figures_of_refinement.refinement_confidence,
    "refinement_events": figures_of_refinement.refinement_events,
}


def drawn(answers: Mapping[str, Answered]) -> dict[str, Figure]:
    """The figure of every question that has an answer."""
    return {question: FIGURES[question](answers) for question, answer in answers.items() if not answer.missing}


def specification(answer: Answered, figure: Figure, *, about: str) -> dict[str, Any]:
    """The figure as Vega-Lite, for the page and for the files; `about` (model, text) stands below its title."""
    bars = f"; thin bars: 95 % interval {answer.interval}" if figure.intervals else ""
    # The renderer dies, and the process with it, on a control code, which the name of a model or a text may hold.
    subtitle = [without_controls(line) for line in (about, f"layers counted from 0{bars}")]
    title = wrap(f"{answer.paper.figure}: {answer.paper.question}", TITLE)
    return assembled(figure.panels, title=title, subtitle=subtitle, description=figure.reading)
