"""The numbers of an answer for scripts: `--fail-if EXPR`, and the first line of `key=value` pairs in a pipe.

An expression compares names with numbers or texts, joined by `and`, `or`, `not`; it is parsed, never evaluated as code.
"""

import ast
import json
import operator
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import typer

from mnemoscope.errors import OptionError

HOLDS = 3
"""The exit code where the expression holds."""
Facts = Mapping[str, Any]
ATTRIBUTE: Mapping[str, type] = {
    **{"target": str, "against": str, "position": int, "difference": float, "difference_after_cap": float},
    **{"memories": int, "k": int, "without": float, "control": float, "residual_error": float, "limit": float},
}
"""The names of `attribute`'s facts, with their types; each may have no value."""
ATTRIBUTE_PROMPTS: Mapping[str, type] = {
    **{"prompts": int, "refused": int, "memories": int, "k": int, "without": float, "control": float},
}
_RECOVERED = dict.fromkeys(("recovered", "control_recovered", "recovered_all", "recovered_everywhere"), float)
DIFF: Mapping[str, type] = {
    **{"first": str, "second": str, "difference_first": float, "difference_second": float, "change": float},
    **{"memories": int, "turns_at": int, "k": int, **_RECOVERED, "residual_error": float, "limit": float},
}
DIFF_PROMPTS: Mapping[str, type] = {
    **{"prompts": int, "refused": int, "never_parted": int, "turned": float},
    **{"memories": int, "k": int, **_RECOVERED},
}
_LONGEST = 1_000


def fail_if_option(*names: Mapping[str, type]) -> Any:
    listed = ", ".join(dict.fromkeys(name for some in names for name in some))
    return typer.Option("--fail-if", metavar="EXPR", help=f"Exit with 3 where it holds; compares {listed}.")


_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    **{ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge},
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne},
}


class Condition:
    """Raises OptionError for what is no comparison of these names."""

    def __init__(self, text: str, names: Mapping[str, type]) -> None:
        self.text, self._names = text, names
        if len(text) > _LONGEST:
            self._refuse(f"it has {len(text):,} characters, more than {_LONGEST:,}")
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            self._refuse("it is no comparison")
        self.names: dict[str, None] = {}
        self._holds(self._tree, {name: kind() for name, kind in names.items()})

    def holds(self, facts: Facts) -> bool:
        """A comparison with what has no value (None) does not hold."""
        return self._holds(self._tree, facts)

    def _holds(self, node: ast.expr, facts: Facts) -> bool:
        if isinstance(node, ast.BoolOp):
            every = [self._holds(each, facts) for each in node.values]
            return all(every) if isinstance(node.op, ast.And) else any(every)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return not self._holds(node.operand, facts)
        if not isinstance(node, ast.Compare):
            self._refuse(f"{ast.unparse(node)!r} is no comparison")
        values = [self._value(each, facts) for each in (node.left, *node.comparators)]
        kept = []
        for compare, one, other in zip(node.ops, values, values[1:], strict=False):
            if type(compare) not in _COMPARISONS or (None not in (one, other) and _is_text(one) != _is_text(other)):
                self._refuse(f"{ast.unparse(node)!r} does not compare numbers, or texts")
            kept.append(None not in (one, other) and _COMPARISONS[type(compare)](one, other))
        return all(kept)

    def _value(self, node: ast.expr, facts: Facts) -> Any:
        match node:
            case ast.Name(id=name) if name in self._names:
                self.names[name] = None
                return facts[name]
            case ast.Constant(value=bool() | None):
                pass
            case ast.Constant(value=int() | float() | str() as value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                return -value
        self._refuse(f"{ast.unparse(node)!r} is none of {', '.join(self._names)}, a number or a quoted text")

    def _refuse(self, why: str) -> NoReturn:
        shown = self.text if len(self.text) <= 80 else f"{self.text[:80]}..."
        raise OptionError(f"--fail-if {shown!r} cannot be read: {why}; write it like 'recovered<0.5'")


def read_condition(text: str | None, names: Mapping[str, type]) -> Condition | None:
    return None if text is None else Condition(text, names)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def facts_line(facts: Facts) -> str:
    """`key=value` pairs that a shell's words, or Python's shlex, are: numbers plain, texts in JSON's quotes."""
    return " ".join(f"{name}={_show(value)}" for name, value in facts.items())


def _show(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def print_facts(facts: Facts) -> None:
    """The first line of an answer, unless a person reads it."""
    if not sys.stdout.isatty():
        print(facts_line(facts))


def fail_where(condition: Condition | None, facts: Facts) -> None:
    """Ends the command with HOLDS where the condition holds."""
    if condition is None or not condition.holds(facts):
        return
    named = facts_line({name: facts[name] for name in condition.names})
    print(f"--fail-if {condition.text!r} holds: {named}", file=sys.stderr)
    raise typer.Exit(HOLDS)


def attribute_facts(document: Mapping[str, Any]) -> dict[str, Any]:
    """Of the document of `attribute`: F, and what it is without the most memories that were switched off together."""
    last = document["curve"][-1] if document["curve"] else {"controls": (None, None)}
    facts = {"k": last.get("k"), "without": last.get("without"), "control": last["controls"][1]}
    facts["memories"] = len(document["memories"])
    if "prompts" in document:
        facts["refused"] = len(document["refused"])
        return {name: facts[name] if name in facts else document[name] for name in ATTRIBUTE_PROMPTS}
    facts |= {"target": document["target_text"], "against": document["against_text"]}
    return {name: facts[name] if name in facts else document[name] for name in ATTRIBUTE}


def diff_facts(document: Mapping[str, Any]) -> dict[str, Any]:
    """Of the document of `diff`: F in both runs, and the share that is recovered by the most memories set back."""
    patched = {one["k"]: one for one in document["patched"]}
    k = max((k for k in patched if isinstance(k, int)), default=None)
    point, ends = patched.get(k, {}), ("all", "everywhere")
    facts = {"memories": len(document["memories"]), "k": k, "recovered": point.get("recovered")}
    facts |= {f"recovered_{end}": patched.get(end, {}).get("recovered") for end in ends}
    if "turned" in document:
        facts |= {"refused": len(document["refused"]), "control_recovered": point.get("control_recovered")}
        return {name: facts[name] if name in facts else document[name] for name in DIFF_PROMPTS}
    said, (first, second) = document["tokens"], document["difference"].values()
    values = {"difference_first": first, "difference_second": second, "change": second - first}
    values |= {side: said and said[side]["text"] for side in ("first", "second")}
    facts |= values if said else dict.fromkeys(values)
    beside = facts["recovered"] is not None and point["controls"]
    facts["control_recovered"] = (second - point["controls"][1]) / (second - first) if beside else None
    return {name: facts[name] if name in facts else document[name] for name in DIFF}
