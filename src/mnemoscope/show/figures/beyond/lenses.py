"""B3: agreement of values, match of residuals and cross-entropy of readouts by layer, under every projection.

Beyond the paper: its Figures 4 and 9 under other projections.
"""

from collections.abc import Sequence

from mnemoscope.questions.beyond.lenses import RULERS_OF_KEYS
from mnemoscope.questions.question import Answer
from mnemoscope.show.figures.chart import Figure, Series, over_all
from mnemoscope.show.figures.colours import BLUE, DASHED, GREEN, ORANGE
from mnemoscope.show.figures.panels import lines

COLOURS = {"plain": BLUE, "ridge": GREEN, "tuned": ORANGE}


def _series(name: str, control: str = "", *, rulers: Sequence[str] = tuple(COLOURS)) -> Sequence[Series]:
    solid = [Series(f"{name}_{ruler}", COLOURS[ruler], title=ruler) for ruler in rulers]
    dashed = [Series(f"{control}_{ruler}", COLOURS[ruler], DASHED, title=f"{ruler}, control") for ruler in rulers]
    return [*solid, *dashed] if control else solid


def figure(answer: Answer) -> Figure:
    name = "lenses"
    agreements = ", ".join(
        f"{over_all(answer, f'agreement_{ruler}')} under {ruler}"
        for ruler in COLOURS
        if answer.total(f"agreement_{ruler}") is not None
    )
    return Figure(
        (
            *lines(
                answer,
                _series("agreement", "control"),
                name=name,
                title="value's top token = target (Figure 4)",
                y="share of memories",
                dodge=True,
            ),
            *lines(
                answer,
                _series("key_found", "key_control_found", rulers=RULERS_OF_KEYS),
                name=f"{name}_keys",
                title="{last_words} of 25 triggers among the key's first 25 (B2)",
                y="share of {last_words}",
            ),
            *lines(
                answer,
                _series("match", "match_control"),
                name=f"{name}_match",
                title="residual's top token = final token (Figure 9)",
                y="share of {cases}",
                dodge=True,
            ),
            *lines(
                answer,
                _series("loss"),
                name=f"{name}_loss",
                title="cross-entropy of the residual's readout",
                y="nats",
                format="~g",
            ),
        ),
        "Values and residuals of each layer read as they are (plain), and through maps to the final stream: least"
        " squares (ridge) and trained to predict what the model predicts (tuned). Dashed: through the same map, another"
        " memory's target or triggers, another {prefix}'s final token. Keys are compared with the words' embeddings as"
        " they are, and led to the layer's stream by least squares (ridge).",
        f"Over all layers, values agree with their targets in {agreements}. Of the {{last_words}} of triggers,"
        f" {over_all(answer, 'key_found_plain')} are among the key's first, and"
        f" {over_all(answer, 'key_found_ridge')} if the words are led to its layer.",
        "Where a lens raises agreement above its control, the layer spoke and the plain reading missed it.",
        "The maps are fitted on the mined text: a short one, or a model of one basis throughout, gains little.",
    )
