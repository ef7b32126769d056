"""B5: the width that each layer needs, its unused and duplicate memories, and early exits (beyond the paper)."""

from typing import Any

import altair as alt

from mnemoscope.questions.beyond.width import THRESHOLDS, TOLERANCE
from mnemoscope.questions.question import Answer
from mnemoscope.show.figures.chart import (
    PERCENT,
    Drawing,
    Figure,
    Panel,
    Series,
    chart,
    ends,
    over_all,
    record,
    tooltip,
)
from mnemoscope.show.figures.colours import BLUE, DASHED, DOTTED, GREEN, GREY, ORANGE, PURPLE
from mnemoscope.show.figures.panels import lines, panel

WIDTHS = (
    Series("width_needed", BLUE, title="the least useful taken out"),
    Series("width_needed_random", ORANGE, DASHED, title="random ones taken out"),
)
UNUSED = (Series("never_fires", GREY, title="never fire"), Series("duplicates", PURPLE, DASHED, title="there twice"))
STOPS = (
    Series("could_stop", GREEN, title="with at most 5 % errors"),
    Series("stopped_90", BLUE, DASHED, title="residual sure by 90 %"),
    Series("wrong_90", ORANGE, DOTTED, title="errors among these"),
)


def figure(answer: Answer) -> Figure:
    name = "layer_width"  # `width` is Vega's own signal
    needed = f"memories that the layer needs at +{TOLERANCE} nats a token"
    return Figure(
        (
            *lines(answer, WIDTHS, name=name, title=needed, y="share of its memories", dodge=True),
            *lines(answer, UNUSED, name=f"{name}_unused", title="memories that do nothing new", y="share", dodge=True),
            *lines(answer, STOPS, name=f"{name}_stops", title="tokens that could stop at the layer", y="share"),
            *_exit_curves(answer),
        ),
        "One layer at a time is narrowed: its least useful memories (mean |m| times the norm of the value, over the"
        " mined text) are set to their mean, and the loss on held-out text is compared with the whole model's; beside"
        " it the mean of four random orders. The width is that of the widest cut tried that costs no more, nor any"
        " narrower one. A token could stop at a layer where the residual's top token has more than that probability;"
        " an error is a token whose final prediction is another one. Lines of the last panel are darker for higher"
        " layers.",
        f"Width needed: {ends(answer, 'width_needed')}; with random memories taken out"
        f" {ends(answer, 'width_needed_random')}. {over_all(answer, 'never_fires')} of all memories never fire, and"
        f" {over_all(answer, 'duplicates')} are there twice. Could stop: {ends(answer, 'could_stop')}.",
        "A low line means a layer that could be narrower; the distance is what choosing the memories is worth.",
        "The other layers make up for a narrowed one, the more the deeper the model; together they cannot.",
    )


def _exit_curves(answer: Answer) -> tuple[Panel, ...]:
    """Errors against the share of tokens that stop: one line per layer, one point per threshold."""
    rows: list[dict[str, Any]] = []
    for layer in answer.layers:
        for percent in THRESHOLDS:
            stopped, wrong = (answer.at(f"{kind}_{percent}", layer) for kind in ("stopped", "wrong"))
            if stopped is not None and wrong is not None:
                stops = {"stopped": stopped.value, "above": f"{percent} %", "stop": stopped.text, "percent": percent}
                rows.append(record(wrong, str(layer)) | stops)
    if not rows:
        return ()
    name = "layer_width_exits"

    def draw() -> Drawing:
        place = chart(name).encode(
            x=alt.X("stopped:Q", title="tokens that stop", axis={"format": PERCENT}),
            y=alt.Y("value:Q", title="errors among these", axis={"format": PERCENT}),
            opacity=alt.Opacity("layer:O", legend=None, scale={"range": [0.25, 1]}),
            order=alt.Order("percent:Q"),
        )
        tips = tooltip(
            {"layer:O": "layer", "above:N": "probability above", "stop:N": "tokens that stop"}
            | {"said:N": "errors", "interval:N": "95 % interval", "count:N": "cases"}
        )
        points = place.mark_point(filled=True, size=40, color=BLUE).encode(tooltip=tips)
        return alt.layer(place.mark_line(strokeWidth=1.5, color=BLUE), points)

    return (panel(draw, {name: rows}, title="errors of early exits, by layer and threshold"),)
