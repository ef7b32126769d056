"""A trace: the records of one prompt, held together; as JSON, as text and as a notebook's table.

Making one from a model is reading.py.
"""

from dataclasses import dataclass
from typing import Any

from mnemoscope.tracing.interventions import Intervention
from mnemoscope.tracing.notebook import trace_html
from mnemoscope.tracing.prompts import Token
from mnemoscope.tracing.records import Place, Position
from mnemoscope.tracing.terminal import trace_text


@dataclass(frozen=True)
class Trace:
    """A prompt's way through the layers; `places[layer][position]`, both from 0. Prints as a table, also in notebooks.

    `interventions` are the changes that the trace was asked to make; those of a block around it are not known to it.
    """

    model: str
    fingerprint: str
    prompt: str
    beginning: Token | None
    positions: tuple[Position, ...]
    places: tuple[tuple[Place, ...], ...]
    interventions: tuple[Intervention, ...] = ()

    @property
    def tokens(self) -> tuple[Token, ...]:
        """The prompt's own tokens."""
        return tuple(position.token for position in self.positions)

    def to_dict(self) -> dict[str, Any]:
        """The trace as plain JSON: tokens with id and text, probabilities, memories by name."""
        return {
            "model": self.model,
            "fingerprint": self.fingerprint,
            "prompt": self.prompt,
            "beginning": None if self.beginning is None else self.beginning.to_dict(),
            "interventions": [str(change) for change in self.interventions],
            "positions": [position.to_dict() for position in self.positions],
            "layers": [
                {"layer": layer, "positions": [place.to_dict() for place in places]}
                for layer, places in enumerate(self.places)
            ],
        }

    def text(self, *, position: int | None = None, memories: int = 3) -> str:
        """The trace as text of at most 118 columns: every position's prediction, and one position's layers.

        `position` counts from 0; negative ones from the end, and None is the last. Raises PromptError for a position
        that the prompt does not have.
        """
        return trace_text(
            self.model, self.positions, self.places, self.interventions, position=position, memories=memories
        )

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return trace_html(self.model, self.positions, self.places, self.interventions)
