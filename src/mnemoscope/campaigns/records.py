"""What people and pages hand to each other: annotators, views of what is to be judged, saved judgements, progress.

Values only; nothing here reads an atlas or a database. The rules of a judgement are in judgements/rules.py.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Annotator:
    """Somebody who may judge; a host also sees everything."""

    name: str
    role: str = "annotator"


@dataclass(frozen=True)
class Invitation:
    """A new annotator and the secret of their link; only its hash is stored, so it is shown once."""

    annotator: Annotator
    token: str


@dataclass(frozen=True)
class Campaign:
    """What is to be judged: keys per layer, blind controls in all, compositions of the last layer."""

    seed: int
    keys_per_layer: int
    controls: int
    cases: int
    made_at: str
    keys: int
    """Keys drawn: fewer than keys_per_layer in a layer with fewer memories that ever fire."""


@dataclass(frozen=True)
class Prefix:
    """A prefix to look at: its text before the trigger token, and that token's own text."""

    number: int
    before: str
    token: str


@dataclass(frozen=True)
class Pattern:
    """A pattern that an author has found: `marks` are numbers of the view's prefixes."""

    pattern: int
    kind: str
    description: str
    marks: tuple[int, ...]


@dataclass(frozen=True)
class KeyView:
    """A key, or a control that looks like one: its prefixes and what this annotator has said of them."""

    code: str
    prefixes: tuple[Prefix, ...]
    patterns: tuple[Pattern, ...]
    none: bool
    """Whether the annotator says that there is no pattern."""
    finished: bool
    can_undo: bool
    memory: str | None = None
    """The memory's name, only where the annotator chose it: a campaign's keys are judged blind."""


@dataclass(frozen=True)
class CaseView:
    """A composition of the last layer: the prefix, what the residual and the feed-forward layer say, and the output."""

    code: str
    prefix: str
    residual: str
    ffn: str
    output: str
    verdict: str | None
    """related, distant, or None while there is none."""

    @property
    def finished(self) -> bool:
        """Whether there is a verdict."""
        return self.verdict is not None


@dataclass(frozen=True)
class Place:
    """One item in an annotator's own order; `kind` is key (controls too) or case."""

    code: str
    kind: str
    finished: bool


@dataclass(frozen=True)
class Progress:
    """How far an annotator is; what was handed in can no longer be changed."""

    keys: int
    keys_finished: int
    cases: int
    cases_finished: int
    handed_in: bool

    @property
    def complete(self) -> bool:
        """Whether every item is finished."""
        return self.keys_finished == self.keys and self.cases_finished == self.cases


@dataclass(frozen=True)
class Saved:
    """A judgement that is stored: its key, time and pattern; `again` if it had been stored before."""

    key: str
    made_at: str
    pattern: int | None = None
    again: bool = False


@dataclass(frozen=True)
class OthersJudgement:
    """What somebody else said of an item, seen after handing in: an author's patterns, or verdict."""

    author: str
    patterns: tuple[Pattern, ...]
    verdict: str | None = None
