"""Figures 7 and 8: how many memories fire at once, and whether their layer says what one of them says (section 5.1)."""

from collections.abc import Mapping

from mnemoscope.figures.answered import Answered
from mnemoscope.figures.chart import BLUE, DASHED, DOTTED, GREEN, GREY, ORANGE, PURPLE, Figure, Series, present
from mnemoscope.figures.panels import lines
from mnemoscope.figures.readings import ends, over_all

ACTIVE = (Series("active", GREEN),)
SPREAD = (
    Series("effective_share", GREEN),
    Series("dominated", PURPLE, DASHED),
)
KINDS = (
    Series("shallow", BLUE, DASHED, "triggers under a shallow pattern"),
    Series("semantic", ORANGE, DASHED, "triggers under a semantic pattern"),
)
ZERO = (
    Series("zero_agreement", BLUE, title="no firing memory says it"),
    Series("zero_agreement_major", ORANGE, DASHED, "none of those with 90 % of the weight"),
    Series("zero_agreement_output", GREY, DOTTED, "no memory says the block's output (lens)"),
)
AGREEING = (
    Series("agreeing_stop_word", BLUE, title="next token is a stop word"),
    Series("agreeing_stop_word_top", PURPLE, DASHED, "layer's top token is a stop word"),
    Series("agreeing_short", ORANGE, title="prefix under 5 tokens"),
)


def layer_activity(answers: Mapping[str, Answered]) -> Figure:
    """Figure 7: the share of memories that fire at a prefix, with the curves of shallow and semantic patterns."""
    answer = answers["layer_activity"]
    panels = [
        lines(answer, ACTIVE, name="layer_activity", title="memories with a coefficient above zero", y="share"),
    ]
    if present(answer, SPREAD):
        title = "effective number of memories that make up the layer's output, and prefixes that one dominates"
        panels.append(lines(answer, SPREAD, name="layer_activity_spread", title=title, y="share"))
    kinds = answers.get("key_patterns")
    if kinds is not None and present(kinds, KINDS):
        title = "what the keys detect in the same layers (from Figure 2)"
        panels.append(lines(kinds, KINDS, name="layer_activity_kinds", title=title, y="share of triggers"))
    return Figure(
        tuple(panels),
        "Share of a layer's memories that fire (coefficient above zero) at a prefix of the validation text, averaged"
        " over prefixes. The effective number is (sum c)^2 / sum c^2 with c = |coefficient| x norm of the value, here"
        " as a share of the layer; a prefix is dominated where one memory holds more than half of sum c.",
        f"{over_all(answer, 'active')} of memories fire at a prefix: {ends(answer, 'active')}. The effective number of"
        f" memories behind the layer's output is {ends(answer, 'effective')}.",
    )


def layer_composition(answers: Mapping[str, Answered]) -> Figure:
    """Figure 8: how often a layer's top token is the top token of none of its firing memories."""
    answer = answers["layer_composition"]
    title = "the layer's top token is the vote of none of its memories"
    panels = [lines(answer, ZERO, name="layer_composition", title=title, y="share of prefixes", dodge=True)]
    if present(answer, AGREEING):
        title = "where some memory does say it"
        name = "layer_composition_agreeing"
        panels.append(lines(answer, AGREEING, name=name, title=title, y="share of those", dodge=True))
    return Figure(
        tuple(panels),
        "Share of prefixes where the feed-forward layer ranks first a token that no memory with a coefficient other"
        " than zero ranks first. Gated and GELU layers leave almost no coefficient at zero, so the major memories (the"
        " fewest that hold 90 % of the weight) are asked, too. The paper's released code looks at the block's output.",
        f"No firing memory says it: {ends(answer, 'zero_agreement')}; no major one:"
        f" {ends(answer, 'zero_agreement_major')}. Where some memory does, the next token is a stop word in"
        f" {over_all(answer, 'agreeing_stop_word')} (of all prefixes: {over_all(answer, 'all_stop_word')}), and the"
        f" prefix has under 5 tokens in {over_all(answer, 'agreeing_short')} ({over_all(answer, 'all_short')}).",
    )
