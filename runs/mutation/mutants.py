"""The mutants of a room: small faults, one to a copy of the tree, that its tests should notice.

Operators are cosmic-ray's (comparisons, arithmetic, numbers, `and`/`or`/`not`, truth values, loops, exceptions,
decorators) and three more: a call made for its effect, a `+=` or a `raise` that is left out; a floating-point number
that is three times as large. Not mutated: docstrings, type annotations, blocks for the type checker, `__repr__`,
`__str__`, what is given to `dataclass` (frozen or not: like a type, for who writes the code), the `*` after which
arguments have names, and what is given to a logger or to a function that reports progress.
"""

import ast
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import parso
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.operators.provider import OperatorProvider

NEED_NAMES = ("VariableReplacer", "VariableInserter")
"""Operators that ask which variable."""
REPORTS = re.compile(r"progress|logging|(^|_|\.)log(ger)?\.|warnings\.warn")
"""What a call is of that says something and changes nothing."""

KEYWORDS_FOLLOW = re.compile(r"\*,")
"""In a signature."""


class LeaveOut(Operator):
    """Leaves out a call made for its effect, an augmented assignment or a `raise`."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        if node.type == "simple_stmt" and self._has_effect(node.children[0]):
            yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        old = node.children[0]
        node.children[0] = parso.python.tree.Keyword("pass", old.start_pos, old.get_first_leaf().prefix)
        return node

    @staticmethod
    def _has_effect(statement: Any) -> bool:
        if statement.type == "expr_stmt":
            return statement.children[1].type == "operator" and statement.children[1].value != "="
        if statement.type in ("atom_expr", "await"):
            return True
        return statement.type == "raise_stmt" or (statement.type == "keyword" and statement.value == "raise")

    @classmethod
    def examples(cls) -> tuple[Any, ...]:
        return ()


class Triple(Operator):
    """Makes a floating-point number three times as large."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        if node.type == "number" and isinstance(ast.literal_eval(node.value), float):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        return parso.python.tree.Number(repr(3 * ast.literal_eval(node.value)), node.start_pos, node.prefix)

    @classmethod
    def examples(cls) -> tuple[Any, ...]:
        return ()


@dataclass(frozen=True)
class Mutant:
    """One fault: the file (from the root of the tree), its line, the operator, its text without and with the fault."""

    path: str
    line: int
    operator: str
    source: str
    mutated: str

    def changed_lines(self) -> tuple[str, str]:
        """The lines as they are and as they become, stripped."""
        old, new = self.source.splitlines(), self.mutated.splitlines()
        first = next(i for i, (one, other) in enumerate(zip(old, new, strict=False)) if one != other)
        last = next(i for i, (one, other) in enumerate(zip(old[::-1], new[::-1], strict=False)) if one != other)
        return tuple(  # type: ignore[return-value]
            " ".join(line.strip() for line in lines[first : len(lines) - last]) for lines in (old, new)
        )

    def statement(self) -> range:
        """The lines of the innermost statement that it is in, without the body of a compound one."""
        found = range(self.line, self.line + 1)
        for node in ast.walk(ast.parse(self.source)):
            if isinstance(node, ast.stmt | ast.ExceptHandler):
                body = getattr(node, "body", None)
                first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
                last = (node.end_lineno or node.lineno) if not body else max(node.lineno, body[0].lineno - 1)
                if first <= self.line <= last:
                    found = range(first, last + 1)
        return found


def _operators() -> dict[str, Operator]:
    provider = OperatorProvider()
    operators: dict[str, Operator] = {name: provider[name]() for name in provider if name not in NEED_NAMES}
    return {**operators, "LeaveOut": LeaveOut(), "Triple": Triple()}


def _span(node: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def spared_spans(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """From where to where the text is not mutated: (line from 1, byte) each."""
    spans = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name in ("__repr__", "__str__"):
                spans.append(_span(node))
            elif node.returns:
                spans.append(_span(node.returns))
        elif isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            spans.append(_span(node.annotation))
        elif isinstance(node, ast.Assign) and _is_type(node.value):
            spans.append(_span(node.value))
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            spans.append(_span(node))
        elif isinstance(node, ast.Call):
            if REPORTS.search(ast.unparse(node.func)) or ast.unparse(node.func) == "dataclass":
                spans.append(_span(node))
            elif ast.unparse(node.func) in ("cast", "TypeVar"):
                spans.append(_span(node.args[0]))
    for number, text in enumerate(source.splitlines(), 1):
        spans += [((number, found.start()), (number, found.end())) for found in KEYWORDS_FOLLOW.finditer(text)]
    return spans


_IN_TYPES = (ast.Subscript, ast.BinOp, ast.BitOr, ast.Name, ast.Attribute, ast.Tuple, ast.List, ast.expr_context)


def _is_type(value: ast.expr) -> bool:
    """Whether what is assigned is a name for a type, as `X = A | None` or `X = dict[str, int]`."""
    return isinstance(value, ast.Subscript | ast.BinOp) and all(
        isinstance(node, _IN_TYPES) or (isinstance(node, ast.Constant) and (node.value is None or node.value is ...))
        for node in ast.walk(value)
    )


def _family(name: str) -> str:
    """What a place is mutated as: of the eleven that `==` can become, one stands for all."""
    return name.split("_")[0]


def draw_mutants(root: Path, paths: list[Path], *, count: int, seed: int) -> tuple[list[Mutant], int]:
    """`count` mutants of these files (fewer where there are not as many), and of how many places.

    Every place (a spot in the text, and a family of operators) has the same chance; which of the family's mutants
    stands for it is drawn too.
    """
    operators = _operators()
    places: dict[tuple[str, tuple[int, int], str], list[tuple[str, int]]] = {}
    sources, spared = {}, {}
    for path in paths:
        name = str(path.relative_to(root))
        sources[name] = path.read_text(encoding="utf-8")
        spared[name] = spared_spans(sources[name])
        nodes = list(ast_nodes(get_ast(sources[name])))
        for operator_name, operator in operators.items():
            spots = [start for node in nodes for start, _ in operator.mutation_positions(node)]
            for occurrence, start in enumerate(spots):
                if not any(first <= start < last for first, last in spared[name]):
                    place = (name, start, _family(operator_name))
                    places.setdefault(place, []).append((operator_name, occurrence))
    chance = random.Random(seed)
    order = sorted(places)
    chance.shuffle(order)
    mutants = []
    for place in order:
        if len(mutants) == count:
            break
        name, (line, _), _ = place
        operator_name, occurrence = chance.choice(places[place])
        try:
            mutated = mutate_code(sources[name], operators[operator_name], occurrence)
        except AttributeError:
            continue  # cosmic-ray cannot replace an exception with a dotted name
        if mutated is not None and _says_else(sources[name], mutated):
            mutants.append(Mutant(name, line, operator_name, sources[name], mutated))
    return mutants, len(places)


def _says_else(source: str, mutated: str) -> bool:
    """Whether it is Python, and other Python than before."""
    try:
        return ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


def read_equivalents(path: Path) -> dict[tuple[str, str, str], str]:
    """Why a mutant cannot be noticed, by file, old lines and new lines.

    The file has four lines for each: its path, `- old`, `+ new` and `= why`.
    """
    found, lines = {}, []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            lines.append(line)
    for name, old, new, why in zip(*[iter(lines)] * 4, strict=True):
        if (old[:2], f"{new} "[:2], why[:2]) != ("- ", "+ ", "= "):  # a line that is left out is a `+` alone
            raise ValueError(f"{path}: not file, - old, + new, = why: {[name, old, new, why]}")
        found[name, old[2:], new[2:]] = why[2:]
    return found
