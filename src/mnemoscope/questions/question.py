"""What a question of the paper is: where it is asked, the numbers it gives, what the paper claims of them.

Everything that is said of a question outside its module and its figure (table, sentence, comparison, page, report)
follows from this. Declares; computes nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mnemoscope.formatting import Form

if TYPE_CHECKING:
    from mnemoscope.questions.answered import Answered, Row
    from mnemoscope.questions.verdicts import Verdict


@dataclass(frozen=True)
class Number:
    """One number of an answer: its name, how its value is to be read, and its label.

    Without a label it is called by its name, with spaces. `alone` is the label away from the question's own figure and
    tables; `terminal` the form in the terminal's table, where that is another.
    """

    name: str
    form: Form
    label: str = ""
    alone: str = ""
    terminal: Form | None = None

    def __post_init__(self) -> None:
        if not self.label:
            object.__setattr__(self, "label", self.name.replace("_", " "))


@dataclass(frozen=True)
class Rule:
    """When a claim counts as shown, in words and as a test of the claim's number, or of the total `by`.

    The test gets the answer and the row of the number tested; None where it cannot be asked of this answer.
    """

    words: str
    test: "Callable[[Answered, Row], Verdict | None]"
    by: str = ""


@dataclass(frozen=True)
class Claim:
    """One statement of the paper's text: what it says, the stated figure, and the total of the answer beside it.

    Where no rule would be fair, there is none. `form` is how ours is to be read beside the paper's.
    """

    text: str
    paper: str
    name: str
    form: Form
    rule: Rule | None = None


@dataclass(frozen=True)
class Finding:
    """A result that the paper's figure shows without a number of its own: what, the rule in words, and its test.

    The test gets all answers by question, and returns ours in words, its interval in words, and the verdict; None where
    there is nothing to judge.
    """

    text: str
    paper: str
    rule: str
    test: "Callable[[Mapping[str, Answered]], tuple[str, str, Verdict | None]]"


@dataclass(frozen=True)
class Paper:
    """Where the paper asks a question: figure, section, the question in one sentence, and its stated results."""

    figure: str
    section: str
    question: str
    claims: tuple[Claim, ...] = ()

    def document(self) -> dict[str, Any]:
        """The same as JSON has it; the rules are not in it."""
        claims = [
            {"text": one.text, "paper": one.paper, "name": one.name, "form": one.form} for one in self.claims
        ]
        return {"figure": self.figure, "section": self.section, "question": self.question, "claims": claims}


@dataclass(frozen=True)
class Question:
    """One question. Its module has it as QUESTION, and `answer(atlas)`; `figures` has a module of the same name.

    `title` says in a few words what it is about; `main` is the number without which there is nothing to draw, and
    `nothing` what is said then; `headline` are the numbers of the terminal's table, `layer_page` those that a layer's
    page shows; `projections` and `interval` are what the answer says of its vectors and intervals.

    `needs_patterns`: it reads patterns.parquet. `counts_judgements`: it counts what people say; its module has
    `judgements(atlas)`. `lists_cases`: it lists cases beside its answer; its module has `cases(atlas)`.
    """

    id: str
    title: str
    paper: Paper
    numbers: tuple[Number, ...]
    main: str
    headline: tuple[str, ...]
    layer_page: tuple[str, ...]
    nothing: str
    interval: str
    projections: tuple[str, ...] = ()
    finding: Finding | None = None
    needs_patterns: bool = False
    counts_judgements: bool = False
    lists_cases: bool = False

    def __post_init__(self) -> None:
        names = [number.name for number in self.numbers]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"{self.id} declares {sorted(twice)} twice")
        tested = [claim.rule.by for claim in self.paper.claims if claim.rule is not None and claim.rule.by]
        shown = (self.main, *self.headline, *self.layer_page, *(claim.name for claim in self.paper.claims), *tested)
        if unknown := set(shown) - set(names):
            raise ValueError(f"{self.id} shows {sorted(unknown)}, which it does not declare")

    def number(self, name: str) -> Number:
        """What is declared of the number; an answer of another version may hold one that is not, shown as it is."""
        return next((one for one in self.numbers if one.name == name), Number(name, "number"))
