"""Figure 6: whether confident values are right (section 4 of the paper), at coefficient 1 and typical activation."""

import altair as alt

from mnemoscope.foundation.formatting import DASH, Table, format_value, number
from mnemoscope.questions.paper.value_confidence import DECILES, WORKING_DECILES
from mnemoscope.questions.question import LITERAL, Answer, Row
from mnemoscope.show.figures.chart import PERCENT, Cell, Drawing, Figure, Panel, Series, cell, chart, record, tooltip
from mnemoscope.show.figures.colours import BLUE, DASHED, GREEN, ORANGE
from mnemoscope.show.figures.panels import error_bars, lines, panel
from mnemoscope.show.figures.stated import Stated

LARGEST = (Series("max_probability", BLUE), Series("max_probability_best", BLUE, DASHED))
AT_WORK = (Series("working_probability", ORANGE), Series("working_probability_best", ORANGE, DASHED))
CONFIDENT = (Series("working_confident", GREEN),)
STATED = (Stated("right of dotted line: 97 of its top 100", at=10 / 16),)


def figure(answer: Answer) -> Figure:
    literal, deciles, at_work = (
        [row for decile in tenths if (row := answer.total(prefix + decile.name)) is not None]
        for prefix, tenths in ((LITERAL, DECILES), ("", DECILES), ("", WORKING_DECILES))
    )
    name = "value_confidence"
    title, y = "largest probability of a layer's values at typical activation, coefficient 1", "probability (log scale)"
    layers = (
        *lines(answer, AT_WORK + LARGEST, name=f"{name}_most", title=title, y=y, format="~g", log=True, stated=STATED),
        *lines(answer, CONFIDENT, name=f"{name}_share", title="confident at typical activation", y="of all values"),
    )
    reading = "There are no deciles: too few memories have a target."
    if len(deciles) == len(DECILES):
        reading = (
            f"Agreement is {deciles[0].text_and_interval} in the least confident tenth of the memories and"
            f" {deciles[-1].text_and_interval} in the most confident."
        )
    if len(at_work) == len(WORKING_DECILES):
        reading += f" At typical activations: {at_work[0].text_and_interval} and {at_work[-1].text_and_interval}."
    bars = [_bars(deciles, name, "largest probability at coefficient 1 (the paper's)")]
    if at_work:
        bars.append(_bars(at_work, f"{name}_at_work", "largest probability at typical activation"))
    return Figure(
        (*bars, *layers),
        "All memories with a target, sorted by the largest probability of their value and cut into ten equal parts:"
        " share whose value ranks its target first. Because the largest probability grows with the norm of the value,"
        " the table below has the norm beside it. At its typical activation a value is multiplied by the median"
        " coefficient of its memory's triggers and divided by what the norms before the head divide by.",
        reading,
        "If agreement rises to the right, the probability that a value gives shows how far to trust it.",
        "At coefficient 1 they grow with the norms, which differ by model; compare models at typical activation.",
        tuple(_table(answer.question.number(rows[0].name).table, rows) for rows in (literal, deciles, at_work) if rows),
    )


def _probabilities(row: Row) -> str:
    return " to ".join(number(end) for end in (row.own.get("lowest"), row.own.get("highest")) if end is not None)


def _table(caption: str, deciles: list[Row]) -> Table:
    header = ("tenth", "largest probability", "agreement", "norm of the value, mean", "memories")
    rows = []
    for tenth, row in enumerate(deciles, 1):
        norm = Cell(format_value(row.own.get("value_norm"), "number"))
        rows.append((Cell(str(tenth)), Cell(_probabilities(row)), cell(row), norm, Cell(f"{row.count:,}")))
    return Table(header, rows, caption=caption)


def _bars(deciles: list[Row], name: str, what: str) -> Panel:
    rows = [
        {**record(row, "agreement"), "decile": row.own["decile"] + 1, "bounds": _probabilities(row) or DASH}
        for row in deciles
    ]

    def draw() -> Drawing:
        title = "tenth of the memories (10: most confident)"
        place = chart(name).encode(x=alt.X("decile:O", title=title, axis={"labelAngle": 0}))
        bars = place.mark_bar(color=BLUE).encode(
            y=alt.Y("value:Q", title="agreement", axis={"format": PERCENT}),
            tooltip=tooltip(
                {"decile:O": "tenth", "bounds:N": "largest probability", "said:N": "agreement"}
                | {"interval:N": "95 % interval", "count:N": "memories"}
            ),
        )
        return alt.layer(bars, error_bars(name, x="decile"))

    return panel(draw, {name: rows}, title=f"agreement by {what} of the value")
