"""`show` and `verify` against the hand-built atlas, read by eye."""

import json
import re
from pathlib import Path

import pytest
from rich.cells import cell_len

from mining.conftest import tiny_model
from mnemoscope.cli import main
from mnemoscope.cli.drawing import mark_trigger
from mnemoscope.foundation.formatting import show_text, show_token
from support.handbuilt_answers import build_answers
from support.handbuilt_atlas import build_atlas
from support.mined import mined_text

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def atlas(handbuilt: Path) -> str:
    return str(handbuilt)


def lines_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip()]


def test_show_draws_both_signs_value_activity_and_neighbours(atlas: str, capsys: Capture) -> None:
    assert main(["show", atlas, "L0.M0"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    rows = lines_of(out)
    for expected in (
        "L0.M0 model handbuilt, text four sentences",
        "Triggers (highest activations): 4, of 3 different prefixes",
        "0 3.000 The capital of France«·is» ·Paris",
        "1 2.000 x2 «The» ·capital",
        "3 1.500 The⏎«é» ·[b]x[/b]",
        "Lowest activations: 1, of 1 different prefixes",
        "0 -0.500 The capital of«·Italy» ·is",
        "at its typical activation 25.0 % 6.0 3.00 nats above the mean token",
        "at coefficient 1 50.0 % 12 entropy 1.00 nats",
        "by the paper's formula 50.0 % 12 first trigger's next token: rank 0",
        "norm of the key 1.00, norm 2.00",
        "where it fires: promotes ·Paris (z score 5.0, clear above 4.0)",
        "where it is negative: no clear token (z score 2.0, clear above 4.0)",
        "best trigger's next token ·Paris: rank 0; mean log p of next tokens -1.50",
        "·Paris 2.000 0.5000 <|end|> -2.000",
        "Activity: positive on 8 of 19 prefixes (42.11 %)",
        "mean activation 0.25, lowest -0.50, highest 3.00, standard deviation 0.50",
        "strongly active (≥ 1/8 of its extreme): 42.1 % above zero, 0 % below zero",
        "0 to 0.000977 ██████████████████████████████ 11",
        "0.5 to 1 ██████████████████████ 8",
        "L1.M0 0.900 ·Paris",
    ):
        assert expected.split() in rows, expected
    assert max(map(cell_len, out.splitlines())) <= 80


def test_a_group_is_shown_once_and_the_rest_on_request(atlas: str, capsys: Capture) -> None:
    assert main(["show", atlas, "L0.M0", "--limit", "1"]) == 0
    out = capsys.readouterr().out
    assert "«The»" not in out
    assert "and 2 more prefixes (--limit 3 shows all)" in out


def test_a_sentence_end_a_missing_target_and_a_dead_memory(atlas: str, capsys: Capture) -> None:
    assert main(["show", atlas, "L0.M1"]) == 0
    out = capsys.readouterr().out
    assert ["0", "1.000", "«·Paris»", "(end)"] in lines_of(out)
    assert "next token ·" not in out
    assert "where it fires: no clear token (z score 3.0" in out
    assert "where it is negative" not in out  # its value stands out below, but it has no negative trigger
    assert main(["show", atlas, "L0.M3"]) == 0
    out = capsys.readouterr().out
    assert "none, the memory never fired" in out
    assert "where it fires" not in out


def test_show_as_json(atlas: str, capsys: Capture) -> None:
    assert main(["show", atlas, "L0.M0", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["memory"] == "L0.M0"
    assert [row["sign"] for row in shown["triggers"]] == [1, 1, 1, 1, -1]
    assert (shown["value"]["top_texts"][0], len(shown["activity"]["histogram"])) == (" Paris", 36)
    assert shown["neighbours"][0]["name"] == "L1.M0"


def test_a_part_says_that_its_values_come_later(tmp_path: Path, capsys: Capture) -> None:
    part = str(build_atlas(tmp_path / "p", part=(2, 3)))
    assert main(["show", part, "L0.M0"]) == 0
    assert "No value yet: this is part 2 of 3" in capsys.readouterr().out
    assert main(["show", part, "L0.M0", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["part"] == {"index": 2, "of": 3}
    assert "value" not in shown


def test_verify_a_whole_atlas(atlas: str, capsys: Capture) -> None:
    assert main(["verify", atlas]) == 0
    assert capsys.readouterr().out == f"{atlas} is whole: 12 files are what was mined\n"
    assert main(["verify", atlas, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"atlas": atlas, "ok": True, "problems": [], "files": 12}


def test_verify_lists_the_damage_and_exits_with_2(tmp_path: Path, capsys: Capture) -> None:
    directory = build_atlas(tmp_path / "a")
    (directory / "tokens.parquet").unlink()
    (directory / "background.parquet").write_bytes(b"")
    assert main(["verify", str(directory)]) == 2
    out, err = capsys.readouterr()
    assert [line.split(":")[0] for line in out.splitlines()] == ["background.parquet", "tokens.parquet"]
    assert err.startswith(f"mnemoscope: {directory} is damaged (2 problems): background.parquet: ")
    assert main(["verify", str(directory), "--json"]) == 2
    shown = json.loads(capsys.readouterr().out)
    assert shown["ok"] is False
    assert len(shown["problems"]) == 2


def test_text_is_made_fit_for_a_terminal() -> None:
    assert show_token(" Paris\n") == "·Paris⏎"
    assert show_token("") == "''"
    assert show_text(" a b  c\td") == "·a b ·c⇥d"
    assert show_token("\x1b[31m\u202e\x7f") == "␛[31m\\u202e\\u007f"
    assert show_text("日本 é") == "日本 é"


def test_tokens_have_the_colour_of_their_coefficients() -> None:
    """Also where the beginning is cut away, to the cell."""
    row = {"position": 2, "prefix": "one two three", "trigger_text": " three"}
    colours = [("one", ""), (" two", "black on #ff0000"), (" three", "black on #00ff00")]
    whole = mark_trigger(row, colours, width=40)
    assert whole.plain == mark_trigger(row, width=40).plain == "one two«·three»"
    assert [(whole.plain[one.start : one.end], str(one.style)) for one in whole.spans] == [
        (" two", "black on #ff0000"),
        ("«·three»", "bold black on #00ff00"),
    ]
    cut = mark_trigger(row, colours, width=12)
    assert cut.plain == "…two«·three»"
    assert [cut.plain[one.start : one.end] for one in cut.spans] == ["two", "«·three»"]


def test_near_duplicates_are_one_line(tmp_path: Path, capsys: Capture) -> None:
    """Three sentences that differ in their first word, and one of its own."""
    given = {"split": "line", "prefixes": 0, "per_sentence": "all"}
    alike = [f"{name} is a small village in the north of the country\n" for name in ("Radom", "Lipno", "Olsza")]
    atlas = mined_text(tiny_model("gpt2"), tmp_path, "".join([*alike, "the cat sat on the mat\n"]), **given)
    capsys.readouterr()
    assert main(["show", str(atlas), "L0.M1", "--json"]) == 0
    triggers = [row for row in json.loads(capsys.readouterr().out)["triggers"] if row["sign"] == 1]
    folds = {row["fold"] for row in triggers}
    assert len(folds) < len({row["prefix_group"] for row in triggers}) > 2
    assert main(["show", str(atlas), "L0.M1"]) == 0
    out = capsys.readouterr().out
    like = sum(int(count) for count in re.findall(r"and (\d+) like it", out.partition("Lowest")[0]))
    assert like == len({row["prefix_group"] for row in triggers}) - len(folds)
    assert f"{len(folds)} without near-duplicates" in out


def test_show_says_what_predictions_hang_on(tmp_path: Path, capsys: Capture) -> None:
    value = (6, 6, 0, 0.5, 1.0, -1.0)
    build_answers(tmp_path, triggers={0: [(0, 1)]}, values={0: [value]}, importance={0: [(0.25, 2.0, 1, 3)]})
    assert main(["show", str(tmp_path), "L0.M0"]) == 0
    said = "validation prefixes 8, direct effect 0.25 logits, attribution 2.00 logits,"
    assert said.split() in [line[: len(said.split())] for line in lines_of(capsys.readouterr().out)]
    assert main(["show", str(tmp_path), "L0.M0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["importance"]["attribution"] == 2.0
