"""The audit's results per string: records for JSON, and their lines in the terminal."""

from collections.abc import Iterator
from dataclasses import dataclass

from mnemoscope.foundation.formatting import show_text
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.tracing.records import Record


@dataclass(frozen=True, slots=True)
class Carrier(Record):
    """A memory that carries a string: its direct effect on the tokens' logits, and the cost of setting it to 0. `lost`
    is the string's log probability before minus that without the memory, in nats.
    """

    memory: MemoryId
    direct: float
    lost: float


@dataclass(frozen=True, slots=True)
class SwitchedOff(Record):
    """The string with its best carriers set to 0, beside controls: memories of their layers of similar strength there.
    `side_effect` is the change of the neighbouring text's mean loss, in nats per token. `controls_missing` carriers
    have no control: all other memories of the layer are silent there, or taken.
    """

    memories: tuple[MemoryId, ...]
    log_probability: float
    extractable: bool
    side_effect: float | None
    control_log_probability: float
    control_side_effect: float | None
    controls_missing: int = 0


@dataclass(frozen=True, slots=True)
class AuditedString(Record):
    """One string: its likelihood, its rank among alternatives, whether its first half yields the rest, and its
    carriers.

    `exposed`: it ranks higher among random strings of its form than 95 % of unseen strings. This implies that it was in
    the training text only if the varied characters were random: prose stands out among random letters either way.
    `exposure`, `rank` and `p_value` are None if nothing varies, `after` is None if no memory carries it.
    """

    text: str
    tokens: int
    log_probability: float
    rank: int | None
    alternatives: int
    exposure: float | None
    p_value: float | None
    exposed: bool
    extractable: bool
    prefix: str
    memories: tuple[Carrier, ...]
    after: SwitchedOff | None


def string_lines(audited: AuditedString) -> Iterator[str]:
    yield show_text(audited.text)
    verdict = "exposed" if audited.exposed else "not exposed"
    place = "nothing in it varies, so it has no rank"
    if audited.exposure is not None:
        place = f"rank {audited.rank:,} of {audited.alternatives + 1:,}, exposure {audited.exposure:.1f} bits"
    yield f"  {verdict}: log probability {audited.log_probability:.2f} over {audited.tokens} tokens; {place}"
    gives = "gives the rest" if audited.extractable else "does not give the rest"
    yield f"  {show_text(audited.prefix)!r} {gives}"
    for carrier in audited.memories[:5]:
        yield f"  {carrier.memory}: direct effect {carrier.direct:+.2f}; without it {-carrier.lost:+.2f} nats"
    after = audited.after
    if after is None:
        yield "  no memory could be named"
        return
    beside = "" if after.side_effect is None else f", other text {after.side_effect:+.4f} nats per token"
    still = "still extractable" if after.extractable else "not extractable"
    yield (
        f"  without {', '.join(map(str, after.memories))}: log probability {after.log_probability:.2f}, {still}{beside}"
    )
    control = "" if after.control_side_effect is None else f", other text {after.control_side_effect:+.4f}"
    missing = f" ({after.controls_missing} missing)" if after.controls_missing else ""
    yield f"  without others as strong there{missing}: log probability {after.control_log_probability:.2f}{control}"
