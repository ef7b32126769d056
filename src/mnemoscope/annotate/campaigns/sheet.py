"""The paper's sheet: patterns that authors, people or models, saw in memories' triggers, and verdicts on compositions.

A sheet belongs to no campaign. Its rows on a memory or composition replace the author's of an earlier sheet.
"""

import json
import re
import sqlite3
from collections.abc import Mapping
from typing import Any

from mnemoscope.annotate.campaigns import views
from mnemoscope.annotate.campaigns.items import Row, best_ranks, find_item, sample_cases, store_chosen
from mnemoscope.annotate.campaigns.store import Store, Turn, add_author
from mnemoscope.annotate.campaigns.views import NONE, Annotator, State
from mnemoscope.annotate.judgements import rules
from mnemoscope.errors import AnnotationError
from mnemoscope.foundation.memory_names import MemoryId

KEY_FIELDS = ("memory", "author", "author_kind", "pattern", "kind", "triggers")
CASE_FIELDS = ("prefix", "author", "author_kind", "verdict")
FORM = f"a row has {', '.join(KEY_FIELDS)}; or {', '.join(CASE_FIELDS)}"
Place = tuple[str, str, int, int]
"""Author, kind of item, layer, and number of the memory or prefix."""


def is_sheet(columns: Mapping[str, Any] | list[str]) -> bool:
    return "event" not in columns and not {"memory", "prefix", "triggers", "verdict"}.isdisjoint(columns)


class Sheet:
    """`add` checks a row and keeps it, `store` then stores all rows that say something new. `cases`: the layers of the
    compositions to judge, by prefix; by default those that `analyze` listed.
    """

    def __init__(self, store: Store, connection: sqlite3.Connection, cases: Mapping[int, int] | None = None) -> None:
        self._store = store
        self._connection = connection
        self._states: dict[Place, list[State]] = {}
        self._verdicts: dict[Place, str] = {}
        self._ranks: dict[tuple[int, int], set[int]] = {}
        self._cases = cases

    def add(self, row: Row) -> None:
        """Raises AnnotationError, MemoryIdError."""
        given = {name for name, value in row.items() if value not in (None, "")}
        fields = KEY_FIELDS if "memory" in given else CASE_FIELDS
        if missing := [name for name in fields if name not in row]:
            raise AnnotationError(f"{missing[0]} is missing; {FORM}")
        if unknown := sorted(given - set(fields)):
            raise AnnotationError(f"{unknown[0]} is no field of a row with {fields[0]}; {FORM}")
        author = rules.check_name(row["author"])
        add_author(
            self._connection, author, rules.check_choice(row["author_kind"], rules.AUTHOR_KINDS, what="author_kind")
        )
        if fields is KEY_FIELDS:
            self._add_pattern(author, row)
        else:
            self._add_verdict(author, row)

    def _add_pattern(self, author: str, row: Row) -> None:
        memory, atlas = MemoryId.parse(str(row["memory"])), self._store.atlas
        layer, number = memory.layer, atlas.number(memory)
        state = self._state(row, layer, number)
        states = self._states.setdefault(self._place(author, "key", layer, number), [])
        if state.description.casefold() in {one.description.casefold() for one in states}:
            raise AnnotationError(f"{author} says this of {memory} in an earlier row; give each pattern once")
        if states and NONE in (state, states[0]):
            raise AnnotationError(f"{author} says of {memory} that there is a pattern and that there is none")
        states.append(state)
        rules.check_pattern(len(states) - 1)

    def _state(self, row: Row, layer: int, memory: int) -> State:
        kind, ranks = rules.check_choice(row["kind"], rules.JUDGED_KINDS, what="kind"), _read_ranks(row["triggers"])
        if kind == "none":
            if ranks or row["pattern"]:
                raise AnnotationError("a row of kind none has no pattern and no triggers")
            return NONE
        description = rules.check_description(row["pattern"])
        best = self._ranks.setdefault((layer, memory), best_ranks(self._store.atlas, layer, memory))
        if outside := ranks - best:
            raise AnnotationError(
                f"trigger {min(outside)} is no rank of its {len(best)} best triggers, the first of rank 0"
            )
        if len(ranks) < rules.AT_LEAST:
            raise AnnotationError(f"triggers is {row['triggers']!r}; a pattern is in at least {rules.AT_LEAST}")
        return State(kind, description, json.dumps(sorted(ranks)))

    def _add_verdict(self, author: str, row: Row) -> None:
        text = str(row["prefix"])
        if self._cases is None:
            self._cases = {case.memory: case.layer for case in sample_cases(self._store.atlas, count=100, seed=0)}
        prefix = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else -1
        if prefix not in self._cases:
            listed = f"lists {len(self._cases)}" if self._cases else "lists none yet (`mnemoscope analyze` does)"
            raise AnnotationError(f"prefix {text[:40]!r} is no composition that the atlas lists; it {listed}")
        place = self._place(author, "case", self._cases[prefix], prefix)
        if place in self._verdicts:
            raise AnnotationError(f"{author} judges prefix {prefix} in an earlier row; judge each once")
        self._verdicts[place] = rules.check_choice(row["verdict"], rules.VERDICTS[:2], what="verdict")

    def _place(self, author: str, kind: str, layer: int, number: int) -> Place:
        """Raises AnnotationError if the author has judged the item in the campaign, blind."""
        table = "judgements" if kind == "key" else "verdicts"
        statement = f"SELECT 1 FROM {table} JOIN items ON items.id = item WHERE author = ? AND items.kind = ?"
        values = (author, kind, layer, number)
        if self._connection.execute(f"{statement} AND items.layer = ? AND items.memory = ?", values).fetchone():
            raise AnnotationError(f"{author} has judged it in the campaign, which a sheet does not replace")
        return author, f"sheet_{kind}", layer, number

    def store(self) -> int:
        """The number of rows stored."""
        added = 0
        for place, states in self._states.items():
            item, annotator = self._item(place)
            before, _ = views.read_history(self._connection, item["id"], annotator.name)
            wanted = [state for state in states if state != NONE]
            if views.is_finished(self._connection, item["id"], annotator.name):
                if sorted(before.values()) == sorted(wanted):
                    continue
            else:
                self._turn(item, annotator).add("finishes", finished=1)
            for number in range(max(max(before, default=0) + 1, len(states))):
                self._turn(item, annotator).add_state(number, (wanted + [NONE] * rules.MOST_PATTERNS)[number])
            added += len(states)
        for place, verdict in self._verdicts.items():
            item, annotator = self._item(place)
            if views.read_verdict(self._connection, item["id"], annotator.name) != verdict:
                self._turn(item, annotator).add("verdicts", verdict=verdict)
                added += 1
        return added

    def _item(self, place: Place) -> tuple[Row, Annotator]:
        author, kind, layer, number = place
        item = find_item(self._connection, kind, layer, number)
        if item is None:
            store_chosen(self._connection, layer, number, kind=kind)
            item = find_item(self._connection, kind, layer, number)
        assert item is not None
        return item, Annotator(author)

    def _turn(self, item: Row, annotator: Annotator) -> Turn:
        return Turn(self._connection, item, annotator, rules.judgement_key(None))


def _read_ranks(given: Any) -> set[int]:
    """Of a list, or of text such as `0 1 2`, `0,1,2` or `[0, 1, 2]`."""
    ranks = re.sub(r"[\[\],]", " ", given).split() if isinstance(given, str) else [] if given is None else given
    if not isinstance(ranks, list) or not all(re.fullmatch(r"[0-9]{1,4}", str(rank)) for rank in ranks):
        raise AnnotationError(f"triggers is {str(given)[:40]!r}, not ranks such as 0 1 2")
    return {int(rank) for rank in ranks}
