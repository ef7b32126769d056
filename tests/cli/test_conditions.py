"""`--fail-if` and the first line in a pipe: read, held, refused; and the names against what real answers have."""

import json
import math
import re
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnemoscope.cli.app import run_verb
from mnemoscope.cli.conditions import diff_facts, facts_line, holds, read_condition
from mnemoscope.errors import OptionError
from mnemoscope.foundation.options.prompt_options import ATTRIBUTE, ATTRIBUTE_PROMPTS, DIFF, DIFF_PROMPTS
from models.test_adapters import save_adapter, save_base

NAMES = ("recovered", "k", "target")
FACTS = {"recovered": 0.25, "k": 8, "target": " Paris"}


def asked(text: str, facts: dict[str, Any]) -> bool:
    tree = read_condition(text, NAMES)
    assert tree is not None
    return holds(tree, facts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("recovered<0.5", True), ("recovered < .25", False), ("recovered<=0.25", True), ("0.5 > recovered", True)),
        *(("k==8", True), ("k!=8", False), ("k>-1", True), ("0 < recovered < 1", True), ("0.3 < recovered < 1", False)),
        *(("recovered<0.5 and k>8", False), ("recovered<0.5 or k>8", True), ("not k>8", True)),
        *(("not (k<9 and k>7)", False), ("target == ' Paris'", True), ("target != ' Rome' and k > 1e0", True)),
    ],
)
def test_comparisons(text: str, expected: bool) -> None:
    assert asked(text, FACTS) is expected


def test_what_has_no_value_compares_with_nothing() -> None:
    nothing: dict[str, Any] = dict.fromkeys(NAMES)
    for text in ("recovered<0.5", "recovered>=0.5", "k==8", "k!=8", "target==''", "recovered<k"):
        assert not asked(text, nothing)
        assert asked(f"not {text}", nothing)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "recovered",
            "recovered<",
            "recovered=0.5",
            "lost<0.5",
            "k<'8'",
            "target<3",
            "k is 8",
            "k in (8, 9)",
        ),
        *(
            "k+1<9",
            "abs(k)<9",
            "k.real<9",
            "[k][0]<9",
            "k<9 if k else k>9",
            "(k:=9)<9",
            "__import__('os').system('x')<1",
        ),
        *(
            "k<True",
            "k<None",
            "k<1j",
            "k<b'8'",
            "k<9; k>9",
            "k<9\nk>9",
            "lambda: k<9",
            "-k<9",
            "+5<k",
            "not k",
            "1 and k",
        ),
        *(
            "(" * 500 + "k<9" + ")" * 500,
            "not " * 4_000 + "k<9",
            "k<" + "9" * 5_000,
            "k<9\0",
            "k<'\ud800'",
            "f'{k}'<'9'",
        ),
    ],
)
def test_anything_else_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(OptionError, match=r"fail_if.* cannot be read") as refused:
        read_condition(text, NAMES)
    assert len(str(refused.value)) < 1_500


@given(st.text(max_size=60) | st.text(alphabet="k<>=! ()019.andotr'\"[]-", max_size=40))
def test_no_text_does_anything_but_compare(text: str) -> None:
    with suppress(OptionError):
        assert asked(text, FACTS) in (True, False)


@given(st.text(max_size=20), st.floats(allow_nan=False, allow_infinity=False), st.integers())
def test_the_line_is_read_by_a_shell(text: str, number: float, count: int) -> None:
    words = shlex.split(facts_line({"a": json.dumps(text)[1:-1], "b": number, "c": count, "d": None}))
    assert words[1:] == [f"b={number:.6g}", f"c={count}", "d=none"]
    assert words[0].startswith("a=")


def told(out: str) -> dict[str, str]:
    """The pairs of the first line."""
    return dict(word.split("=", 1) for word in shlex.split(out.splitlines()[0]))


ATTRIBUTED = ["attribute", "handmade:planted", "the old", "--for", " house", "--against", " mat", "--singles", "4"]
DIFFERED = ["diff", "handmade:planted", "the old", "--other-prompt", "the new", "--for", " mat", "--against", " house"]


@pytest.mark.parametrize(("words", "names"), [(ATTRIBUTED, ATTRIBUTE), (DIFFERED, DIFF)])
def test_the_first_line_in_a_pipe(words: list[str], names: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb(words) == 0
    pairs = told(capsys.readouterr().out)
    assert list(pairs) == list(names)  # type: ignore[call-overload]
    assert run_verb([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    if words[0] == "attribute":
        assert (pairs["target"], pairs["against"]) == (" house", " mat")
        assert float(pairs["difference"]) == pytest.approx(document["difference"], rel=1e-5)
        last = document["curve"][-1]
        assert (int(pairs["k"]), float(pairs["without"])) == (last["k"], pytest.approx(last["without"], abs=1e-5))
        assert float(pairs["control"]) == pytest.approx(last["controls"][1], rel=1e-5)
    else:
        first, second = document["difference"]["first"], document["difference"]["second"]
        assert (pairs["first"], pairs["second"]) == (" house", " mat")
        assert float(pairs["change"]) == pytest.approx(second - first, rel=1e-5)
        by_k = {str(one["k"]): one for one in document["patched"]}
        point = by_k[pairs["k"]]
        assert int(pairs["k"]) == max(int(k) for k in by_k if k.isdigit())
        assert float(pairs["recovered"]) == pytest.approx(point["recovered"], abs=1e-5)
        beside = (second - point["controls"][1]) / (second - first)
        assert float(pairs["control_recovered"]) == pytest.approx(beside, abs=1e-5)
        assert float(pairs["recovered_all"]) == pytest.approx(by_k["all"]["recovered"], abs=1e-5)
        assert pairs["turns_at"] == ("none" if document["turns_at"] is None else str(document["turns_at"]))


@pytest.mark.parametrize(("restored", "k"), [(None, 8), (1, 1), (2, 2), (3, 2), (5, 4), (6, 4), (7, 8), (100, 8)])
def test_recovered_is_that_of_the_nearest_number(restored: int | None, k: int) -> None:
    patched = [{"k": each, "recovered": each / 100, "control_recovered": each / 1000} for each in (1, 2, 4, 8)]
    facts = diff_facts({"patched": [*patched, {"k": "all", "recovered": 0.9}], "turned": 0.5}, restored)
    assert (facts["k"], facts["recovered"], facts["control_recovered"]) == (k, k / 100, k / 1000)
    assert facts["recovered_all"] == 0.9
    assert diff_facts({"patched": [], "turned": 0.0}, restored)["k"] is None


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_restored_is_what_the_condition_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, adapter = save_base(tmp_path / "base", "llama"), save_adapter(tmp_path / "adapter", "llama")
    words = ["diff", base, "a b", "--other-adapter", adapter, "--for", "c", "--against", "d"]
    assert run_verb([*words, "--json"]) == 0
    recovered = {one["k"]: one["recovered"] for one in json.loads(capsys.readouterr().out)["patched"]}
    assert recovered[2] != recovered[max(k for k in recovered if isinstance(k, int))]
    assert run_verb([*words, "--restored", "2", "--fail-if", "k==2 and recovered>=-1e9"]) == 3
    pairs = told(capsys.readouterr().out)
    assert (pairs["k"], float(pairs["recovered"])) == ("2", pytest.approx(recovered[2], rel=1e-4))
    assert run_verb([*words, "--restored", "2"]) == 2
    assert "--fail-if EXPR" in capsys.readouterr().err


def test_files_of_prompts_have_facts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prompts.jsonl"
    rows = [
        {"prompt": "the old", "for": " house", "against": " mat"},
        {"prompt": "the new", "for": " house", "against": " mat"},
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    assert run_verb(["attribute", "handmade:planted", "--prompts", str(file)]) == 0
    pairs = told(capsys.readouterr().out)
    assert (list(pairs), pairs["prompts"], pairs["refused"]) == ([*ATTRIBUTE_PROMPTS], "2", "0")
    rows = [{"prompt": "the old", "other_prompt": "the new", "for": " mat", "against": " house"}]
    file.write_text("\n".join(map(json.dumps, rows)))
    words = ["diff", "handmade:planted", "--prompts", str(file)]
    assert run_verb([*words, "--fail-if", "prompts==1 and turned>=0"]) == 3
    pairs = told(capsys.readouterr().out)
    assert (list(pairs), pairs["prompts"], math.isfinite(float(pairs["recovered"]))) == ([*DIFF_PROMPTS], "1", True)
    assert run_verb([*words, "--fail-if", "difference_first>0"]) == 2  # a name of one prompt


def test_the_page_has_the_names() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cause.md").read_text(encoding="utf-8")
    tables = (("attribute", ATTRIBUTE), ("attribute --prompts", ATTRIBUTE_PROMPTS), ("diff", DIFF))
    for command, names in (*tables, ("diff --prompts", DIFF_PROMPTS)):
        (row,) = re.findall(rf"\| `{command}` \| (.*) \|\n", page)
        assert [name for name in re.findall("`([a-z_]+)`", row) if name != "none"] == list(names)


@pytest.mark.parametrize("words", [ATTRIBUTED, DIFFERED])
def test_exit_codes(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb([*words, "--fail-if", "memories<0 or k<0"]) == 0
    assert run_verb([*words, "--json", "--fail-if", "memories>=0 and k>0"]) == 3
    out, err = capsys.readouterr()
    assert json.loads(out[out.index("\n{") :] if not out.startswith("{") else out)["memories"]
    assert err.splitlines()[-1].startswith("--fail-if 'memories >= 0 and k > 0' holds: memories=")
    assert run_verb(["attribute", "no such model", "x", "--fail-if", "memories"]) == 2  # before the model is looked for
    assert "--fail-if 'memories' cannot be read" in capsys.readouterr().err


def test_runs_that_never_part_have_no_values(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["diff", "handmade:planted", "the old", "--other", "handmade:planted", "--fail-if", "recovered<0.5"]
    assert run_verb(words) == 0
    pairs = told(capsys.readouterr().out)
    assert {pairs[name] for name in ("first", "difference_second", "change", "recovered", "turns_at")} == {"none"}
    assert run_verb([*words[:-1], "not recovered>=0.5"]) == 3
