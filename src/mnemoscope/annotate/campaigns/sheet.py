"""The paper's sheet: patterns that authors, people or models, saw in memories' triggers, and verdicts on compositions.

A sheet belongs to no campaign. Its rows on a memory or composition replace the author's of an earlier sheet.
"""

import json
import re
import sqlite3
from collections.abc import Collection, Mapping

from mnemoscope.annotate.campaigns import views
from mnemoscope.annotate.campaigns.items import Row, best_ranks, find_item, sample_cases, store_chosen
from mnemoscope.annotate.campaigns.store import Store, Turn, add_author
from mnemoscope.annotate.campaigns.views import NONE, Annotator, State
from mnemoscope.annotate.judgements import rules
from mnemoscope.errors import AnnotationError
from mnemoscope.foundation.memory_names import MemoryId

KEYS = ("memory", "author", "author_kind", "pattern", "kind", "triggers")
CASES = ("prefix", "author", "author_kind", "verdict")
FORM = f"a row has {', '.join(KEYS)}; or {', '.join(CASES)}"


def is_sheet(columns: Collection[str]) -> bool:
    return "event" not in columns and not {"memory", "prefix", "triggers", "verdict"}.isdisjoint(columns)


class Sheet:
    """`add` checks a row and keeps it; `store` stores what is new. `cases`: the layers of the compositions to judge by
    prefix, by default those that `analyze` listed.
    """

    def __init__(self, store: Store, connection: sqlite3.Connection, cases: Mapping[int, int] | None) -> None:
        self._atlas, self._connection, self._cases = store.atlas, connection, cases
        self._said: dict[tuple[str, str, int, int], list[State]] = {}
        """Patterns, or one verdict, by author, kind of item, layer, and number of the memory or prefix."""

    def add(self, row: Row) -> None:
        """Raises AnnotationError, MemoryIdError."""
        given = {name for name, value in row.items() if value not in (None, "")}
        fields = KEYS if "memory" in given else CASES
        if wrong := [name for name in fields if name not in row] or sorted(given - set(fields)):
            raise AnnotationError(f"{wrong[0]} is {'unknown' if wrong[0] in row else 'missing'}; {FORM}")
        author = rules.check_name(row["author"])
        add_author(
            self._connection, author, rules.check_choice(row["author_kind"], rules.AUTHOR_KINDS, what="author_kind")
        )
        kind, layer, number, state = self._read_pattern(row) if fields is KEYS else self._read_verdict(row)
        said = self._said.setdefault((author, f"sheet_{kind}", layer, number), [])
        if said and (
            NONE in (state, *said) or state.description.casefold() in {one.description.casefold() for one in said}
        ):
            raise AnnotationError(f"{author} says this, or the contrary, in an earlier row")
        table = "judgements" if kind == "key" else "verdicts"
        statement = f"SELECT 1 FROM {table} JOIN items ON items.id = item WHERE author = ? AND items.kind = ?"
        values = (author, kind, layer, number)
        if self._connection.execute(f"{statement} AND items.layer = ? AND items.memory = ?", values).fetchone():
            raise AnnotationError(f"{author} has judged it in the campaign, which a sheet does not replace")
        said.append(state)
        rules.check_pattern(len(said) - 1)

    def _read_pattern(self, row: Row) -> tuple[str, int, int, State]:
        memory = MemoryId.parse(str(row["memory"]))
        layer, number = memory.layer, self._atlas.number(memory)
        kind, given = rules.check_choice(row["kind"], rules.JUDGED_KINDS, what="kind"), row["triggers"] or []
        ranks = re.sub(r"[\[\],]", " ", given).split() if isinstance(given, str) else given
        if not isinstance(ranks, list) or not all(re.fullmatch(r"[0-9]{1,4}", str(rank)) for rank in ranks):
            raise AnnotationError(f"triggers is {str(given)[:40]!r}, not ranks such as 0 1 2")
        if kind == "none":
            if ranks or row["pattern"]:
                raise AnnotationError("a row of kind none has no pattern and no triggers")
            return "key", layer, number, NONE
        marked, best = {int(rank) for rank in ranks}, best_ranks(self._atlas, layer, number)
        if outside := marked - best:
            raise AnnotationError(
                f"trigger {min(outside)} is no rank of its {len(best)} best triggers, which count from 0"
            )
        if len(marked) < rules.AT_LEAST:
            raise AnnotationError(f"triggers is {given!r}; a pattern is in at least {rules.AT_LEAST}")
        return "key", layer, number, State(kind, rules.check_description(row["pattern"]), json.dumps(sorted(marked)))

    def _read_verdict(self, row: Row) -> tuple[str, int, int, State]:
        if self._cases is None:
            self._cases = {case.memory: case.layer for case in sample_cases(self._atlas, count=100, seed=0)}
        text = str(row["prefix"])
        prefix = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else -1
        if prefix not in self._cases:
            listed = f"lists {len(self._cases)}" if self._cases else "lists none yet (`mnemoscope analyze` does)"
            raise AnnotationError(f"prefix {text[:40]!r} is no composition that the atlas lists; it {listed}")
        verdict = rules.check_choice(row["verdict"], rules.VERDICTS[:2], what="verdict")
        return "case", self._cases[prefix], prefix, State(verdict, "", "[]")

    def store(self) -> int:
        """The number of rows stored."""
        added = 0
        for (author, kind, layer, number), states in self._said.items():
            turn = Turn(self._connection, self._item(kind, layer, number), Annotator(author), rules.judgement_key(None))
            before, finished = turn.patterns(), views.is_finished(self._connection, turn.item["id"], author)
            verdict = views.read_verdict(self._connection, turn.item["id"], author)
            if kind == "sheet_case" and verdict != states[0].kind:
                turn.add("verdicts", verdict=states[0].kind)
            elif kind == "sheet_key" and (not finished or sorted(before.values()) != sorted(set(states) - {NONE})):
                wanted = dict.fromkeys(before, NONE) | dict(enumerate(states))
                for pattern, state in wanted.items():
                    turn.add_state(pattern, state, suffix=f".{pattern}")
                turn.add("finishes", finished=1)
            else:
                continue
            added += len(states)
        return added

    def _item(self, kind: str, layer: int, number: int) -> Row:
        if find_item(self._connection, kind, layer, number) is None:
            store_chosen(self._connection, layer, number, kind=kind)
        return find_item(self._connection, kind, layer, number) or {}
