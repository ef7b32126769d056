"""The numbers of an answer for scripts: `--fail-if EXPR`, and the first line of `key=value` pairs in a pipe.

An expression compares names with numbers or texts, joined by `and`, `or`, `not`; it is parsed, never evaluated as code.
"""

import ast
import json
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mnemoscope.cli.runner import emit, print_shown, terminal_columns
from mnemoscope.errors import OptionError
from mnemoscope.foundation.options.prompt_options import ATTRIBUTE, ATTRIBUTE_PROMPTS, DIFF, DIFF_PROMPTS, TEXTS

if TYPE_CHECKING:
    from mnemoscope.attribution.explanation import Explanation

HOLDS = 3
"""The exit code where the expression holds."""
Facts = Mapping[str, Any]
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    **{ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge},
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne},
}
_LONGEST = 1_000


def read_condition(text: str | None, names: Sequence[str]) -> ast.expr | None:
    """Raises OptionError for what is no comparison of these names."""
    if text is None:
        return None
    try:
        tree = ast.parse(text[: _LONGEST + 1].strip(), mode="eval").body
        holds(tree, {name: "" if name in TEXTS else 0 for name in names})
    except (SyntaxError, ValueError, LookupError, MemoryError, RecursionError):
        tree = None
    if tree is None or len(text) > _LONGEST:
        shown = text if len(text) <= 80 else f"{text[:80]}..."
        raise OptionError(
            f"--fail-if {shown!r} cannot be read; compare {', '.join(names)} with numbers or quoted texts, such as"
            f" '{names[-1]}<0.5', joined by and, or, not"
        )
    return tree


def holds(node: ast.expr, facts: Facts) -> bool:
    """Whether the expression holds; a comparison with what has no value (None) does not. Raises ValueError or
    LookupError for what is none.
    """
    match node:
        case ast.BoolOp():
            every = [holds(each, facts) for each in node.values]
            return all(every) if isinstance(node.op, ast.And) else any(every)
        case ast.UnaryOp(op=ast.Not()):
            return not holds(node.operand, facts)
        case ast.Compare():
            values = [_value(each, facts) for each in (node.left, *node.comparators)]
            compares = [_COMPARISONS[type(each)] for each in node.ops]
            if len({isinstance(value, str) for value in values if value is not None}) > 1:
                raise ValueError("a text and a number")
            each = zip(compares, values, values[1:], strict=False)
            return None not in values and all(compare(one, other) for compare, one, other in each)
    raise ValueError("no comparison")


def _value(node: ast.expr, facts: Facts) -> Any:
    match node:
        case ast.Name():
            return facts[node.id]
        case ast.Constant(value=value) if type(value) in (int, float, str):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
    raise ValueError("neither a name nor a literal")


def facts_line(facts: Facts) -> str:
    """`key=value` pairs that a shell's words, or Python's shlex, are: numbers plain, texts in JSON's quotes."""
    shown = {name: f"{value:.6g}" if isinstance(value, float) else json.dumps(value) for name, value in facts.items()}
    return " ".join(f"{name}={'none' if facts[name] is None else text}" for name, text in shown.items())


def show(answer: "Explanation", read: Callable[[Facts], Facts], *, as_json: bool, save_list: Path | None) -> Facts:
    """Prints an answer, in a pipe with its facts (`read` from its document) first, and saves its list. The facts."""
    document = answer.to_dict()
    facts = read(document)
    if as_json:
        emit(document)
    else:
        from mnemoscope.tracing import for_terminal

        if (columns := terminal_columns()) is None:
            print(facts_line(facts))
        with for_terminal(columns):
            print_shown(answer.text())
    if save_list is not None:
        answer.save_list(save_list)
    return facts


def fail_where(condition: ast.expr | None, facts: Facts) -> None:
    """Ends the command with HOLDS where the condition holds."""
    if condition is not None and holds(condition, facts):
        named = [each.id for each in ast.walk(condition) if isinstance(each, ast.Name)]
        values = facts_line({name: facts[name] for name in named})
        print(f"--fail-if {ast.unparse(condition)!r} holds: {values}", file=sys.stderr)
        raise typer.Exit(HOLDS)


def attribute_facts(document: Facts) -> Facts:
    """Of the document of `attribute`: F, and what it is without the most memories that were switched off together."""
    last = document["curve"][-1] if document["curve"] else {"controls": (None, None)}
    facts = {"k": last.get("k"), "without": last.get("without"), "control": last["controls"][1]}
    facts |= {name: document.get(f"{name}_text") for name in ("target", "against")}
    return _complete(document, facts, ATTRIBUTE_PROMPTS if "prompts" in document else ATTRIBUTE)


def diff_facts(document: Facts, restored: int | None = None) -> Facts:
    """Of the document of `diff`: F in both runs, and the share that is recovered by the most memories set back, or by
    the measured number nearest to `restored` (of two, the smaller).
    """
    patched = {one["k"]: one for one in document["patched"]}
    ks = [k for k in patched if isinstance(k, int)]
    k = max(ks, default=None) if restored is None else min(ks, key=lambda k: (abs(k - restored), k), default=None)
    point = patched.get(k, {})
    facts = {"k": k} | {name: point.get(name) for name in ("recovered", "control_recovered")}
    facts |= {f"recovered_{end}": patched.get(end, {}).get("recovered") for end in ("all", "everywhere")}
    if "turned" in document:
        return _complete(document, facts, DIFF_PROMPTS)
    if said := document["tokens"]:
        first, second = document["difference"].values()
        facts |= {"difference_first": first, "difference_second": second, "change": second - first}
        facts |= {side: said[side]["text"] for side in said}
        if facts["recovered"] is not None and point["controls"]:
            facts["control_recovered"] = (second - point["controls"][1]) / (second - first)
    return _complete(document, facts, DIFF)


def _complete(document: Facts, facts: Facts, names: Sequence[str]) -> Facts:
    """All of the names: lists by their lengths."""
    plain = {name: len(one) if isinstance(one, list) else one for name, one in document.items() if name in names}
    return {name: facts[name] if name in facts else plain.get(name) for name in names}
