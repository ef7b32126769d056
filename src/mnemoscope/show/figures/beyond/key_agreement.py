"""B2: whether keys detect words (beyond the paper; the mirror of its Figure 4)."""

from mnemoscope.questions.question import Answer
from mnemoscope.show.figures.chart import Figure, Series, ends, over_all
from mnemoscope.show.figures.colours import BLUE, DASHED, DOTTED, GREEN, ORANGE, PURPLE
from mnemoscope.show.figures.panels import lines

AGREEMENT = (
    Series("agreement", BLUE, title="the key's first word is its best trigger's last"),
    Series("control", ORANGE, DASHED, title="another memory's trigger"),
    Series("chance", PURPLE, DOTTED),
)
FOUND = (
    Series("found", GREEN, title="{last_tokens} of its 25 best triggers"),
    Series("control_found", ORANGE, DASHED, title="of another memory's"),
)


def figure(answer: Answer) -> Figure:
    name = "key_agreement"
    title = "word that the key is closest to = {last_token} of the best trigger"
    beyond = "beyond the first word: among the 25 words that the key is closest to"
    return Figure(
        (
            *lines(answer, AGREEMENT, name=name, title=title, y="share of memories", dodge=True),
            *lines(answer, FOUND, name=f"{name}_found", title=beyond, y="share of {last_tokens}"),
        ),
        "Share of memories whose key is closer to the embedding of their best trigger's {last_token} than to that of"
        " any other token (centred cosine; the gain of the norm before the layer folded in). Baselines: the same keys"
        " with another memory's triggers, and 1 over the size of the vocabulary.",
        f"Agreement is {ends(answer, 'agreement')}; over all layers {over_all(answer, 'agreement')}, against"
        f" {over_all(answer, 'control')} with another memory's triggers.",
        "A key that agrees can be read off the weights: its memory fires at the word that it resembles.",
        "Only low layers read streams that resemble words; deep models and untied embeddings agree less.",
    )
