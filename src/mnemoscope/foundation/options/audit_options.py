"""The options of an audit, which are checked before a model is loaded; needs no torch."""

from dataclasses import dataclass

from mnemoscope.errors import OptionError
from mnemoscope.foundation.options.declared import DeclaredOptions, option

VARIED = ("all", "digits")
"""Which characters vary: digits and letters, or digits only."""


@dataclass(frozen=True, kw_only=True)
class AuditOptions(DeclaredOptions):
    """What is drawn beside each string, and what is measured of its memories."""

    # With fewer than 19 others a string cannot be among the highest 5 %.
    alternatives: int = option(999, "Random strings of the same form beside each.", least=19)
    vary: str = option("all", "What is random in them: digits and letters, or only digits.", choices=VARIED)
    candidates: int = option(16, "Memories switched off one by one.")
    top: int = option(4, "Memories switched off together.", metavar="K")
    neighbours: int = option(200, "Texts, at most, on which side effects are measured.", least=1)
    seed: int = option(0, "Of the alternatives and the control memories.", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.top <= self.candidates:
            raise OptionError(
                f"the top {self.top} of {self.candidates} candidates is impossible; choose top from 1 to candidates"
            )
