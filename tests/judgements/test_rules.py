"""What one judgement may hold: the last value that fits and the first that does not, for every rule."""

from datetime import UTC, datetime
from typing import Any

import pytest

from mnemoscope.annotate.judgements import rules
from mnemoscope.errors import AnnotationError

ATLAS = "ab" * 32
CAMPAIGN = {"uid": "0123456789abcdef" * 2, "seed": 0, "keys_per_layer": 1, "controls": 0, "cases": 0}
CAMPAIGN |= {"made_at": "2026-01-02T03:04:05+00:00"}
JUDGEMENT: dict[str, Any] = {
    "author": "Ada",
    "author_kind": "person",
    "made_at": "2026-01-02T03:04:05+02:00",
    "event": "judgement",
}
JUDGEMENT |= {"item_kind": "key", "layer": 1, "memory": 7, "pattern": 0, "kind": "shallow", "triggers": [0, 2, 3]}
JUDGEMENT |= {"description": "ends with  of", "key": "12345678", "undoes": None, "code": "0123456789abcdef0123"}
JUDGEMENT |= {"campaign": CAMPAIGN, "atlas": ATLAS}
SAYS_NOTHING = {"pattern": None, "description": None, "triggers": None}
VERDICT = JUDGEMENT | SAYS_NOTHING | {"event": "verdict", "item_kind": "case", "kind": "related"}
FINISH = JUDGEMENT | SAYS_NOTHING | {"event": "finish", "kind": "finished"}
ALL_WORK = FINISH | {"item_kind": None, "layer": None, "memory": None, "code": None, "campaign": None}


def test_a_line_has_single_spaces_and_a_greatest_length() -> None:
    assert rules.one_line("  a\n b\t c ", what="x", longest=5) == "a b c"
    with pytest.raises(AnnotationError, match="the x has 5 characters"):
        rules.one_line("a b c", what="x", longest=4)
    with pytest.raises(AnnotationError, match="the x is 7, not text"):
        rules.one_line(7, what="x", longest=4)  # type: ignore[arg-type]


@pytest.mark.parametrize("char", ["\x00", "\x7f", "\ud800", "\u202e", "\u2069"])
def test_a_line_holds_nothing_that_cannot_be_read(char: str) -> None:
    with pytest.raises(AnnotationError, match="cannot be read"):
        rules.one_line(f"a{char}b", what="x", longest=9)


def test_names_and_descriptions() -> None:
    assert (rules.check_name(" Ada "), rules.check_name("-7")) == ("Ada", "-7")
    with pytest.raises(AnnotationError, match="needs at least one letter or digit"):
        rules.check_name("-?")
    assert rules.check_name("a" * 80) == "a" * 80
    with pytest.raises(AnnotationError, match="the name has 81 characters"):
        rules.check_name("a" * 81)
    assert rules.check_description("d" * 500) == "d" * 500
    for text, said in (("d" * 501, "501 characters"), (" \n", "has no description")):
        with pytest.raises(AnnotationError, match=said):
            rules.check_description(text)


def test_keys_of_judgements() -> None:
    for given in ("a" * 8, "Z_-9" * 16):
        assert rules.judgement_key(given) == given
    made = {rules.judgement_key(None) for _ in range(3)}
    assert len(made) == 3
    assert {rules.judgement_key(key) for key in made} == made, "what is made is what is accepted"
    for wrong in ("a" * 7, "a" * 65, "aaaa aaaa", "aaaaaaaa\n", 12345678, ""):
        with pytest.raises(AnnotationError, match="it needs 8 to 64 letters"):
            rules.judgement_key(wrong)  # type: ignore[arg-type]


def test_marks_are_sorted_and_at_least_three_of_those_there_are() -> None:
    assert rules.check_marks([4, 0, 2, 4], 5) == (0, 2, 4)
    for marks, said in (
        ([0, 1, 5], "prefix 5 is marked, but there are only prefixes 0-4"),
        ([-1, 1, 2], "prefix -1 is marked"),
        ([0, 1, 1], "2 prefixes are marked; a pattern is in at least 3"),
        ([], "0 prefixes are marked"),
        ([0, 1, True], "not numbers of prefixes"),
    ):
        with pytest.raises(AnnotationError, match=said):
            rules.check_marks(marks, 5)


def test_choices_and_numbers_of_patterns() -> None:
    assert rules.check_choice("b", ("a", "b"), what="x") == "b"
    with pytest.raises(AnnotationError, match="the x is 'c'; choose one of a, b"):
        rules.check_choice("c", ("a", "b"), what="x")
    assert [rules.check_pattern(pattern) for pattern in (0, 24)] == [0, 24]
    for wrong in (-1, 25, True, "0"):
        with pytest.raises(AnnotationError, match="patterns are numbered 0-24"):
            rules.check_pattern(wrong)  # type: ignore[arg-type]


def test_times_are_stored_in_utc_and_as_long_as_any_other() -> None:
    assert rules.format_time(datetime(2026, 1, 2, tzinfo=UTC)) == "2026-01-02T00:00:00.000000+00:00"
    assert len(rules.current_time()) == len("2026-01-02T00:00:00.000000+00:00")
    assert abs((datetime.fromisoformat(rules.current_time()) - datetime.now(UTC)).total_seconds()) < 3600


@pytest.mark.parametrize("row", [JUDGEMENT, VERDICT, FINISH, ALL_WORK])
def test_a_row_that_fits_is_stored_with_its_time_in_utc(row: dict[str, Any]) -> None:
    found = rules.check_row(row, ATLAS)
    assert found["made_at"] == "2026-01-02T01:04:05.000000+00:00"
    changed = {"made_at", "description", "triggers"} if row is JUDGEMENT else {"made_at"}
    same = row.keys() - changed
    assert {name: found[name] for name in same} == {name: row[name] for name in same}
    if row is JUDGEMENT:
        assert (found["description"], found["triggers"]) == ("ends with of", "[0, 2, 3]")


@pytest.mark.parametrize(
    ("row", "change"),
    [
        (JUDGEMENT, {"kind": "none", "description": None, "triggers": []}),
        (JUDGEMENT, {"kind": "none", "description": "", "triggers": []}),
        (JUDGEMENT, {"item_kind": "control", "triggers": [0, 1, 2, 24]}),
        (JUDGEMENT, {"item_kind": "chosen", "campaign": None}),
        (JUDGEMENT, {"layer": 0, "memory": 2**31 - 1}),
        (JUDGEMENT, {"key": "k" * 80, "undoes": "a.b-c_d9", "pattern": 24}),
        (JUDGEMENT, {"made_at": "0002-01-01T00:00:00+00:00"}),
        (JUDGEMENT, {"made_at": "9998-12-31T00:00:00+00:00"}),
        (VERDICT, {"kind": "none"}),
        (FINISH, {"item_kind": "case", "kind": "taken up"}),
    ],
)
def test_rows_that_just_fit(row: dict[str, Any], change: dict[str, Any]) -> None:
    found = rules.check_row(row | change, ATLAS)
    assert found["kind"] == (row | change)["kind"]
    if row is JUDGEMENT:
        assert found["description"] == ("" if found["kind"] == "none" else "ends with of")


RANKS, FEW, NONE = "not a list of ranks in order", "a pattern is in at least 3", "kind none has no triggers"
WRONG: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "mood missing or unknown": [(JUDGEMENT, {"mood": 1})],
    ".a, b, c missing or unknown.": [(JUDGEMENT, dict.fromkeys("dcba"))],
    "another atlas .manifest cdcdcdcdcdcd, this one is abababababab.": [(JUDGEMENT, {"atlas": "cd" * 32})],
    "the event is 'guess'; choose one of judgement, verdict, finish": [(JUDGEMENT, {"event": "guess"})],
    "the kind is 'related'; choose one of shallow, semantic, both, none": [(JUDGEMENT, {"kind": "related"})],
    "the kind is 'shallow'; choose one of related, distant, none": [(VERDICT, {"kind": "shallow"})],
    "the name is": [(JUDGEMENT, {"author": "?"})],
    "the author_kind is None; choose one of person, model": [(JUDGEMENT, {"author_kind": None})],
    "not the key of a judgement": [(JUDGEMENT, {"key": key}) for key in ("1234567", "k" * 81, None)],
    "undoes is '1234567'": [(JUDGEMENT, {"undoes": "1234567"})],
    "a verdict has no pattern": [(VERDICT, {"pattern": 0}), (VERDICT, {"undoes": "12345678"})],
    "a finish has no pattern": [(FINISH, {"triggers": []})],
    "patterns are numbered": [(JUDGEMENT, {"pattern": 25})],
    RANKS: [(JUDGEMENT, {"triggers": ranks}) for ranks in ([0, 2, 1], [0, 1, 1, 2], [0, 1.5, 2], "012")],
    FEW: [(JUDGEMENT, {"kind": kind, "triggers": ranks}) for kind, ranks in (("both", [0, 1]), ("semantic", []))],
    NONE: [(JUDGEMENT | {"kind": "none"}, change) for change in ({"description": ""}, {"triggers": []}, {})],
    "has no description": [(JUDGEMENT, {"description": said}) for said in ("", None)],
    "is given without item_kind": [(ALL_WORK, {"layer": 0}), (ALL_WORK, {"code": "0" * 20})],
    "the item_kind is 'key'; choose one of case": [(VERDICT, {"item_kind": "key"})],
    "the item_kind is 'case'; choose one of key, control, chosen": [(JUDGEMENT, {"item_kind": "case"})],
    "the item_kind is 'row'; choose one of key, control, chosen, sheet_key, case": [(FINISH, {"item_kind": "row"})],
    "item_kind is None": [(JUDGEMENT, {"item_kind": None})],
    "layer is (-1|True)": [(JUDGEMENT, {"layer": layer}) for layer in (-1, True)],
    "memory is 2147483648": [(JUDGEMENT, {"memory": 2**31})],
    "not the code of an item": [(JUDGEMENT, {"code": code}) for code in ("0" * 19, "g" * 20)],
    "campaign is": [
        (JUDGEMENT, {"campaign": one}) for one in (None, [1], {**CAMPAIGN, "seed": "0"}, {**CAMPAIGN, "x": 0})
    ],
    "not 32 hexadecimal digits": [(JUDGEMENT, {"item_kind": "chosen", "campaign": CAMPAIGN | {"uid": "0" * 31}})],
    "made_at is 'now', not a time": [(JUDGEMENT, {"campaign": CAMPAIGN | {"made_at": "now"}})],
    "made_at is None, not a time": [(JUDGEMENT, {"made_at": None})],
    "needs its offset from UTC": [(JUDGEMENT, {"made_at": "2026-01-02T03:04:05"})],
    "its year must be from 2 to": [
        (JUDGEMENT, {"made_at": f"{day}T00:00:00+00:00"}) for day in ("0001-12-31", "9999-01-01")
    ],
}


@pytest.mark.parametrize(("said", "rows"), WRONG.items(), ids=list(WRONG))
def test_rows_that_do_not_fit(said: str, rows: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    for row, change in rows:
        with pytest.raises(AnnotationError, match=said):
            rules.check_row(row | change, ATLAS)
