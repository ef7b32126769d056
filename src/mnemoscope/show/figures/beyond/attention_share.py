"""B1: attention beside the memories (beyond the paper; its Figure 11 for the other key-value memory)."""

from mnemoscope.foundation.formatting import Table
from mnemoscope.questions.answer_builder import complement
from mnemoscope.questions.question import Answer
from mnemoscope.show.figures.chart import Cell, Figure, Series, cell, over_all
from mnemoscope.show.figures.colours import BLUE, DASHED, GREEN, GREY, ORANGE, PURPLE, SOLID
from mnemoscope.show.figures.panels import lines, stack_shares

WRITERS = (
    ("attention", ORANGE, "attention"),
    ("cross_attention", GREEN, "cross-attention"),
    ("ffn", BLUE, "feed-forward"),
)
"""What adds to the logit in every layer, its colour and title; cross-attention only in some encoder-decoders."""


def _of_writers(kind: str, dash: tuple[int, ...] = SOLID, more: str = "") -> tuple[Series, ...]:
    return tuple(Series(f"{name}_{kind}", colour, dash, title + more) for name, colour, title in WRITERS)


SHARES = (*_of_writers("share"), *_of_writers("control", DASHED, ", to another's token"))
MOVES = (*_of_writers("moves"), *_of_writers("moves_control", DASHED, ", to another's token"))
NORMS = _of_writers("norm")
USED = (
    Series("attended_of_positions", ORANGE, title="attended positions, of those there are"),
    Series("effective_of_memories", BLUE, title="memories, of those of the layer"),
)
NUMBERS = (
    Series("attended", ORANGE, title="attended positions"),
    Series("effective", BLUE, title="memories"),
)
WHOLE = ("embedding", "attention", "cross_attention", "ffn", "bias", "rest")


def _events(name: str, alone: str) -> tuple[Series, ...]:
    return (
        Series(f"{name}_residual", GREY, title="residual: the stream's token stays"),
        Series(f"{name}_agreement", GREEN, title="agreement: both predict it"),
        Series(f"{name}_composition", ORANGE, title="composition: a third token"),
        Series(f"{name}_own", PURPLE, title=alone),
    )


def figure(answer: Answer) -> Figure:
    name = "attention_share"
    stacks = [
        stack_shares(
            answer,
            _events(one, f"{title}: its own token"),
            answer.rows(f"{one}_residual") + [complement(row) for row in answer.rows(f"{one}_changed")],
            name=f"{name}_{one}_events",
            title=f"what the prediction after {title} comes from",
        )
        for one, title in (*(writer[::2] for writer in WRITERS[:2]), ("ffn", "the feed-forward layer"))
        if answer.rows(f"{one}_changed")
    ]
    shares = "what each layer gives the final token's logit above the mean logit"
    told, crossing, of_cross = answer.total("cross_attention_told"), "", ""
    if told is not None:
        crossing = f" Cross-attention is told from self-attention in {told.text} of the layers: there attention is the"
        crossing += " latter alone; elsewhere cross-attention is within attention, or within all else."
    if answer.total("cross_attention_share") is not None:
        of_cross = f" {over_all(answer, 'cross_attention_share')} cross-attention's,"
    return Figure(
        (
            *lines(answer, SHARES, name=name, title=shares, y="share of the logit", zero=True, dodge=True),
            *stacks,
            *lines(
                answer,
                MOVES,
                name=f"{name}_moves",
                title="alone, it moves the top token to the final one",
                y="share of {cases}",
                dodge=True,
            ),
            *lines(
                answer,
                NUMBERS,
                name=f"{name}_numbers",
                title="effective number of what is used",
                y="number",
                format=",~r",
                log=True,
            ),
            *lines(answer, USED, name=f"{name}_used", title="effective number, as a share of what there is", y="share"),
            *lines(
                answer,
                NORMS,
                name=f"{name}_norms",
                title="length of what is added to the stream",
                y="norm",
                format=",~r",
            ),
        ),
        "Every norm's scale frozen, the final token's logit is a sum of what embedding, attention, feed-forward layers"
        " and biases add; shares are of that logit above the mean logit of the vocabulary, sums over {cases}."
        " Baseline: what the same vectors give the final token of another {prefix}. Events are those of Figure 11."
        + crossing,
        f"Of the final token's logit above the mean logit {over_all(answer, 'embedding_share')} is the embedding's,"
        f" {over_all(answer, 'attention_share')} attention's,{of_cross}"
        f" {over_all(answer, 'ffn_share')} the feed-forward layers'."
        f" Attention changes the prediction in {over_all(answer, 'attention_changed')} of cases, a feed-forward layer"
        f" in {over_all(answer, 'ffn_changed')}.",
        "The shares show who writes the prediction; what attention carries to later layers is not in them.",
        "A large embedding, parallel blocks or few heads divide the logit in another way.",
        tables=(_whole(answer),),
    )


def _whole(answer: Answer) -> Table:
    titles = {name: f"{title}, all layers" for name, _, title in WRITERS} | {"rest": "all else"}
    rows = tuple(
        (
            Cell(titles.get(part, part)),
            *(cell(answer.total(f"{part}_{kind}")) for kind in ("share", "control", "logit_share")),
        )
        for part in WHOLE
        if part != "cross_attention" or answer.total("cross_attention_share") is not None
    )
    header = ("part", "of the logit above the mean", "given to another's token", "of the logit as it is")
    return Table(header, rows, caption="The final token's logit in parts, over all {cases}")
