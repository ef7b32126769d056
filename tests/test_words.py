"""The words that depend on how a model reads a text stand in one file: no template and no printed text has its own."""

import ast
import re
from pathlib import Path

import pytest

import mnemoscope
from mnemoscope.foundation.reading import Reading
from mnemoscope.foundation.words import NEXT, SAME, in_words
from mnemoscope.questions import QUESTIONS, load_question

SOURCE = Path(mnemoscope.__file__).parent
TEMPLATES = sorted(SOURCE.glob("show/pages/templates/*.html"))
MODULES = sorted(
    path for room in ("show", "web", "cli", "questions", "search", "agents") for path in (SOURCE / room).rglob("*.py")
)
LITERAL = re.compile(
    r"\b(next tokens?|prefix(es)?|what follows|(came|comes) next|text so far|followed by)\b", re.IGNORECASE
)
NAME = re.compile(r"[\w./-]+|--?\w.*")
"""A string that is the name of a table, column, option or file, and no text."""
EXCEPTIONS = {
    "cli/start/demo.py": "the built-in model, which is causal",
    "cli/look/show.py": "help of an option, of all models",
    "web/routes/annotate_item.py": "the form's fields in the OpenAPI document, of all models",
    "show/pages/model/trace.py": "a parameter's description in the OpenAPI document, of all models",
    "search/database.py": "an option of SQLite",
    "web/settings.py": "the path that a proxy puts before addresses",
    "questions/sources.py": "an error that names the table of prefixes",
}


def texts(module: Path) -> list[str]:
    """The string constants of a module but for docstrings."""
    tree, said = ast.parse(module.read_text(encoding="utf-8")), set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            said.add(id(node.value))
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in said)
    strings = [node.value for node in constants if isinstance(node.value, str) and not NAME.fullmatch(node.value)]
    return [re.sub(r"\{+\w+\}+", "", one) for one in strings]


def shown(template: Path) -> str:
    """A template's text and the texts in its expressions, without comments and names of classes."""
    whole = re.sub(r"\{#.*?#\}|class=\"[^\"]*\"", "", template.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(
        r"\{[{%].*?[%}]\}",
        lambda tag: " ".join(each for each in re.findall(r'"([^"]*)"', tag[0]) if " " in each),
        whole,
    )


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_a_template_has_no_word_of_its_own(template: Path) -> None:
    assert LITERAL.findall(shown(template)) == []


def test_no_printed_text_has_a_word_of_its_own() -> None:
    found = {module.relative_to(SOURCE).as_posix(): list(filter(LITERAL.search, texts(module))) for module in MODULES}
    assert {name: own for name, own in found.items() if own and name not in EXCEPTIONS} == {}
    assert [name for name in EXCEPTIONS if not found[name]] == []


def test_a_phrase_that_is_named_is_there() -> None:
    named = {name for template in TEMPLATES for name in re.findall(r"\bwords\.(\w+)", template.read_text())}
    assert named <= NEXT.keys()
    code = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    named |= {name for name in re.findall(r"words\[['\"](\w+)['\"]\]", code) if name != "NAME"}
    assert named | {name for name in NEXT if f"{{{name}}}" in code} == NEXT.keys()


def test_a_declared_text_is_in_the_words_of_the_model() -> None:
    assert Reading(predicts="same", mask=3).words is SAME
    assert Reading(predicts="same").words["cases"] == "sentences"
    assert in_words("share of {cases}, seed {seed}", SAME) == "share of masked sentences, seed {seed}"
    assert in_words(("a", "{prefix}"), NEXT) == ("a", "prefix")
    assert load_question("value_agreement").title == "whether values predict what follows"
    assert load_question("value_agreement", SAME).title == "whether values predict what stands there"


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_has_the_same_numbers_in_other_words(name: str) -> None:
    ours, theirs = load_question(name), load_question(name, SAME)
    assert [one.name for one in ours.numbers] == [one.name for one in theirs.numbers]
    assert not LITERAL.search(" ".join([theirs.title, theirs.paper.question, *(one.label for one in theirs.numbers)]))
