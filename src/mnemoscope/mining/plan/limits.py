"""A limit of sentences or tokens that the beginning of a text fills: a few documents then decide what triggers are."""

from math import ceil, floor, log10

from mnemoscope.corpus import Source, TokenizedCorpus
from mnemoscope.foundation.formatting import plain_percent

_MOST = 0.5
"""The share of the text from which on there is no warning."""
_SPARE = 1.1
"""How much more is drawn than the limit takes on average, since documents differ in length."""
_ROUNDING = 1e-9


def limit_note(source: Source, copy: TokenizedCorpus) -> str | None:
    """`spread_note` of a text that was read just now; None of one read earlier, or of unknown size."""
    documents = int(copy.counts["documents"])
    if not (source.size and source.meter.done and len(copy.mined)):
        return None
    mined = int(copy.documents(copy.mined[-1:])[0]) + 1
    sample = None if source.draw is None else source.draw[0]
    return spread_note(mined, mined / documents * source.meter.done / source.size, sample)


def spread_note(documents: int, share: float, sample: float | None) -> str | None:
    """The warning when a token limit covers only the beginning of the text (`documents`, a `share` of it), with the
    `--sample` that spreads it; None from half of the text on.
    """
    if not 0 < share < _MOST:
        return None
    wanted = share * (sample or 1.0) * _SPARE
    unit = 10.0 ** (1 - floor(log10(wanted)))
    spread = ceil(wanted * unit - _ROUNDING) / unit  # two digits
    return (
        f"the limit is filled by the first {documents:,} documents, {plain_percent(share)} of the text;"
        f" --sample {spread:g} draws about as much from all of it"
    )
