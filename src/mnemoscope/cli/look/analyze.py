"""`mnemoscope analyze`: answers the questions from an atlas and stores the answers in it."""

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from mnemoscope.cli import arguments as arg
from mnemoscope.cli.progress import reporting
from mnemoscope.cli.runner import emit
from mnemoscope.errors import AtlasUnfinished
from mnemoscope.foundation.files import is_writable
from mnemoscope.foundation.formatting import Table, pluralise
from mnemoscope.foundation.options.declared import option
from mnemoscope.foundation.options.mining_options import AtlasArgument
from mnemoscope.foundation.words import CONTINUES_NOTHING, KEYS_ONLY

if TYPE_CHECKING:
    from mnemoscope.atlas import Atlas
    from mnemoscope.foundation.words import Words
    from mnemoscope.questions.answers import Answers


class AnalyzeOptions(AtlasArgument):
    questions: list[str] | None = option(
        None, "Such as value_agreement, or figure4; all if none is named.", metavar="QUESTION", argument=True
    )
    patterns: bool = option(False, "Make the patterns again before answering.")
    judgements: Path | None = option(
        None, "First import judgements: a sheet or an export (CSV or JSONL).", metavar="FILE"
    )


def analyze(options: AnalyzeOptions, *, json: bool) -> None:
    """Answer the paper's questions about an atlas.

    Needs no model. key_patterns, key_removals: what keys detect, and which token matters. value_agreement, value_rank,
    value_confidence: whether values predict what follows. layer_activity, layer_composition: how memories make up a
    layer's prediction. refinement_match, refinement_confidence, refinement_events: how layers refine it.
    Answers are written into the atlas, as analyses/QUESTION.json and QUESTION.parquet, and replace older ones.
    The files also hold what each number counts, and its 95 % interval. Of an atlas that cannot be written, the stored
    answers are shown.

    A sheet has the columns memory, author, author_kind (person or model), pattern, kind (shallow, semantic, both, none)
    and triggers (ranks such as 0 1 2); or prefix, author, author_kind and verdict (related or distant).

    Example: mnemoscope analyze atlas value_agreement value_rank
    """
    from mnemoscope.atlas.schema import QUESTIONS, question_named

    atlas, judgements = options.atlas, options.judgements
    named = [question_named(question) for question in options.questions or ()]
    arg.check_atlases(atlas)
    from mnemoscope.atlas import open_atlas

    with reporting() as progress:
        opened = open_atlas(atlas)
        added = None if judgements is None else _import(opened, judgements)
        answers = _answers(opened, named, patterns=options.patterns, progress=progress)
    if json:
        imported = {} if added is None else {"judgements_added": added}
        emit({"atlas": str(atlas), "answers": answers.documents, "unanswered": answers.unanswered} | imported)
        return
    if added is not None:
        print(f"{pluralise(added, 'judgement')} added from {judgements}")
    for question, document in answers.documents.items():
        _draw(question, document, opened.reading.words)
    where = "written to" if is_writable(atlas) else "as stored in"
    print(f"{len(answers.documents)} of {len(QUESTIONS)} questions, {where} {atlas / 'analyses'}")
    for question, reason in answers.unanswered.items():
        print(f"not {'asked' if reason in (CONTINUES_NOTHING, KEYS_ONLY) else 'answered'}: {question}: {reason}")


def _import(atlas: "Atlas", path: Path) -> int:
    from mnemoscope.annotate.campaigns.import_export import import_judgements
    from mnemoscope.annotate.campaigns.store import open_store
    from mnemoscope.annotate.judgements.reading import ANNOTATIONS
    from mnemoscope.questions.paper.refinement_events import cases as list_cases

    cases: dict[int, int] = {}
    with suppress(AtlasUnfinished):
        cases = dict(list_cases(atlas).select("prefix", "layer").rows())
    if not (atlas.path / ANNOTATIONS).exists():  # a file that is refused leaves no empty database
        with TemporaryDirectory() as folder, open_store(atlas, Path(folder, ANNOTATIONS)) as trial:
            import_judgements(trial, path, cases=cases)
    with open_store(atlas) as store:
        return import_judgements(store, path, cases=cases)


def _answers(atlas: "Atlas", named: list[str], *, patterns: bool, progress: Any) -> "Answers":
    from mnemoscope.questions import QUESTIONS, answers

    if not is_writable(atlas.path):
        return answers.read_only_answers(atlas, [one for one in QUESTIONS if one in named or not named], anew=patterns)
    if patterns:
        atlas = answers.with_patterns(atlas, QUESTIONS, anew=True, progress=progress)
    if not named:
        return answers.write_all(atlas, progress=progress)
    also = answers.outdated_by_patterns(atlas) if patterns else ()
    selected = [question for question in QUESTIONS if question in {*named, *also}]
    return answers.Answers(answers.write(answers.with_patterns(atlas, selected, progress=progress), selected), {})


def _draw(question: str, document: dict[str, Any], words: "Words") -> None:
    from rich.text import Text

    from mnemoscope.cli.drawing import print_table, stdout_console
    from mnemoscope.questions import load_question
    from mnemoscope.questions.question import LITERAL

    console = stdout_console(piped_width=100)
    declared, paper = load_question(question, words), document["paper"]
    answered = {row["name"] for row in document["layers"]}
    headline = [declared.number(name) for name in declared.headline]
    shown = [number for number in headline if not number.optional or number.name in answered]
    console.print(Text(f"{question} ({paper['figure']})", style="bold"))
    console.print(Text(paper["question"]))
    values: dict[str, dict[str, Any]] = {}
    for row in document["layers"]:
        values.setdefault(str(row["layer"]), {})[row["name"]] = row["value"]
    totals = {row["name"]: row for row in document["totals"]}
    if any(number.name in totals for number in shown):
        values["all"] = {name: row["value"] for name, row in totals.items()}
    rows = [
        (layer, *(_number(numbers.get(number.name), number.terminal or number.form) for number in shown))
        for layer, numbers in values.items()
    ]
    columns = [">layer", *(f">{number.name.replace('_', ' ')}" for number in shown)]
    print_table(console, Table(columns, rows), wrap=True)
    if claims := paper["claims"]:
        beside = []
        left_out = {claim.name for claim in declared.paper.claims if claim.left_out(totals)}
        for claim in (one for one in claims if one["name"] not in left_out):
            ours, literal = (_spoken(totals.get(prefix + claim["name"]), claim["form"]) for prefix in ("", LITERAL))
            beside.append((literal or ours, ours if literal else "the same", claim["paper"], claim["text"]))
        print_table(console, Table(("by the paper's formula", "by ours", "paper", ""), beside), wrap=True)
    if declared.why:
        console.print(Text(f"{declared.why}."))
    console.print()


def _spoken(row: dict[str, Any] | None, form: str) -> str:
    """A total with its interval; empty without one."""
    if row is None:
        return ""
    here = [_number(row[name], form) for name in ("value", "low", "high")]
    return here[0] if "-" in here else "{} ({} to {})".format(*here)


def _number(value: float | None, form: str) -> str:
    if value is None:
        return "-"
    if form == "share":
        if 0 < abs(value) < 0.0005:
            return f"{100 * value:.1g}%" if abs(value) >= 1e-6 else "~0%"
        return f"{value:.1%}"
    return f"{value:,.0f}" if abs(value) >= 1000 or form == "count" else f"{value:.3g}"
