"""The options of an audit, which are checked before a model is loaded; needs no torch."""

from dataclasses import dataclass

from mnemoscope.errors import OptionError

VARIED = ("all", "digits")
"""Which characters vary: digits and letters, or digits only."""


@dataclass(frozen=True)
class AuditOptions:
    """`alternatives` are drawn for each string, varying `all` or only `digits`. The best `candidates` by direct effect
    are set to 0 one by one, the best `top` of them together. Side effects are measured on at most `neighbours` texts.
    """

    alternatives: int = 999
    vary: str = "all"
    candidates: int = 16
    top: int = 4
    seed: int = 0
    neighbours: int = 200

    def __post_init__(self) -> None:
        if self.vary not in VARIED:
            raise OptionError(f"--vary {self.vary!r} is not known; choose one of {', '.join(VARIED)}")
        if self.alternatives < 19:
            raise OptionError(f"{self.alternatives} alternatives cannot show a rank of 5 %; draw 19 or more")
        if not 1 <= self.top <= self.candidates:
            raise OptionError(
                f"the top {self.top} of {self.candidates} candidates is impossible; choose top from 1 to candidates"
            )
        if self.neighbours < 1:
            raise OptionError(f"{self.neighbours} neighbouring texts show no side effect; take 1 or more")
