"""B3: whether the ruler was wrong (beyond the paper; its Figures 4 and 9 under other rulers)."""

from collections.abc import Mapping, Sequence

from mnemoscope.figures.chart import BLUE, DASHED, GREEN, ORANGE, Figure, Series, over_all
from mnemoscope.figures.panels import lines
from mnemoscope.questions.question import Answer

COLOURS = {"plain": BLUE, "ridge": GREEN, "tuned": ORANGE}


def _series(name: str, control: str = "") -> Sequence[Series]:
    own = [Series(f"{name}_{ruler}", colour, title=ruler) for ruler, colour in COLOURS.items()]
    dashed = [
        Series(f"{control}_{ruler}", colour, DASHED, title=f"{ruler}, control") for ruler, colour in COLOURS.items()
    ]
    return [*own, *dashed] if control else own


def figure(answers: Mapping[str, Answer]) -> Figure:
    """B3: agreement of values, match of residuals and cross-entropy of readouts, by layer, under every ruler."""
    answer, name = answers["lenses"], "lenses"
    said = ", ".join(
        f"{over_all(answer, f'agreement_{ruler}')} under {ruler}"
        for ruler in COLOURS
        if answer.total(f"agreement_{ruler}") is not None
    )
    return Figure(
        (
            *lines(answer, _series("agreement", "control"), name=name, title="value's top token = target (Figure 4)",
                   y="share of memories", dodge=True),
            *lines(answer, _series("match", "match_control"), name=f"{name}_match",
                   title="residual's top token = final token (Figure 9)", y="share of prefixes", dodge=True),
            *lines(answer, _series("loss"), name=f"{name}_loss", title="cross-entropy of the residual's readout",
                   y="nats", format="~g"),
        ),
        "Values and residuals of each layer read as they are (plain), and through maps to the final stream: least"
        " squares (ridge) and trained to predict what the model predicts (tuned). Dashed: through the same map, another"
        " memory's target, another prefix's final token.",
        f"Over all layers, values agree with their targets in {said}.",
    )  # fmt: skip
