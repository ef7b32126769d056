"""Figure 3: which tokens of a prefix keys need (section 3.2 of the paper)."""

from mnemoscope.foundation.formatting import join_words
from mnemoscope.questions.question import Answer
from mnemoscope.show.figures.chart import Figure, Series, over_all
from mnemoscope.show.figures.colours import BLUE, DASHED, DOTTED, GREY, ORANGE, PATTERN_COLOURS, PURPLE
from mnemoscope.show.figures.panels import lines

TEXT = (
    Series("own_median", PURPLE, title="own token masked"),
    Series("first_median", BLUE, DASHED, "first token"),
    Series("last_median", ORANGE, title="last token"),
    Series("random_median", GREY, DOTTED, "random token"),
)
SOURCE = (
    Series("source_first_median", BLUE, DASHED, "first token of the source"),
    Series("source_last_median", ORANGE, title="last token of the source"),
    Series("source_random_median", GREY, DOTTED, "random token of the source"),
)
BANDS = {one.name: (one.name.replace("median", "q25"), one.name.replace("median", "q75")) for one in (*TEXT, *SOURCE)}
LEAST = 10
"""Triggers under a kind of pattern, in a layer, of which a median is drawn."""


def figure(answer: Answer) -> Figure:
    own = answer.total("own_median") is not None
    token = "own" if own else "last"
    kinds = [Series(f"{token}_median_{kind}", colour, title=label) for kind, label, colour in PATTERN_COLOURS]
    token = "one token of the {prefix} removed: median and middle half"
    lost = "the own token masked" if own else "the last token removed"
    kind = f"{lost}, by the pattern that the trigger falls under (median)"
    y = "change of the activation (coefficient)"
    tokens = ("first", "the first"), ("last", "the last"), ("random", "a random")
    changes = [f"{over_all(answer, f'{name}_median')} without {token} token" for name, token in tokens]
    changes = [f"{over_all(answer, 'own_median')} with the own token masked"] * own + changes
    sources = answer.total("source_random_median") is not None
    changes += [f"{over_all(answer, 'source_random_median')} without a random token of the source"] * sources
    source = "one token of the source removed: median and middle half"
    return Figure(
        (
            *lines(answer, TEXT, name="key_removals_tokens", title=token, y=y, bands=BANDS, zero=True),
            *lines(answer, SOURCE, name="key_removals_source", title=source, y=y, bands=BANDS, zero=True),
            *lines(answer, kinds, name="key_removals_kinds", title=kind, y=y, zero=True, dodge=True, least=LEAST),
        ),
        "Relative change (m' - m) / m of a trigger's activation when one token of its {prefix}"
        + " or of its source" * sources
        + " is taken away: median over triggers, with the middle half as a band. At -100 % the memory no longer fires."
        f" A line stops where fewer than {LEAST} triggers in the sample fall under that kind of pattern; the tables"
        " below have all medians.",
        f"Median change of the activation over all layers: {join_words(changes)}.",
        "The token whose removal costs most is the one that keys look at.",
        "Most tokenizers cut words into pieces: here the {last_token} may be half a word, in the paper a whole one.",
    )
