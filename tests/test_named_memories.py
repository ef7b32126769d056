"""Memories by range and by list: `L3`, `L5.M0-19`, `@FILE`; and lists that are none."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from mnemoscope.cli import main
from mnemoscope.errors import InterventionError, MemoryIdError, MnemoscopeError, ModelDiffers, OptionError, StoreFailed
from mnemoscope.foundation.memory_changes import Intervention, interventions_of
from mnemoscope.foundation.memory_names import MemoryId, NamedMemories, Numbering, save_list

Capture = pytest.CaptureFixture[str]


@dataclass
class Holder:
    """Layer 0 has 4 memories, layer 1 two routed experts of 3 and a shared one of 2."""

    fingerprint: str = "aa"
    spec: str = "it"

    def numbering(self, layer: int) -> Numbering:
        if layer > 1:
            raise MemoryIdError(f"layer {layer} does not exist")
        return Numbering((3, 3, 2), 2) if layer else Numbering((4,))


def names(text: str, holder: Holder | None = None) -> str:
    return " ".join(map(str, NamedMemories.parse(text).of(holder or Holder())))


def test_ranges_are_written_out_each_memory_once_in_order() -> None:
    assert names("L0") == "L0.M0 L0.M1 L0.M2 L0.M3"
    assert names(" L0.M2-3, L0.M1 ,L0.M3") == "L0.M2 L0.M3 L0.M1"
    assert names("L1.E1.M1-2,L1.S0") == "L1.E1.M1 L1.E1.M2 L1.S0.M0 L1.S0.M1"
    assert names("L1").split() == [
        f"L1.{expert}.M{m}" for expert, n in (("E0", 3), ("E1", 3), ("S0", 2)) for m in range(n)
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("L0.M4", "L0.M4 is not in it, whose layer 0 has memories 0-3"),
        ("L0.M0-999999999", "L0.M999999999 is not in it"),
        ("L0.M3-1", "L0.M3-1 ends before it begins"),
        ("L1.M0", "L1.M0 is not in it, whose layer 1 has experts E0-E1 with memories 0-2 and S0 with 0-1"),
        ("L1.E2", "L1.E2 is not in it"),
        ("L2", "layer 2 does not exist"),
        ("L0,", "'' does not name a memory"),
        ("L0.M\u0661", "does not name a memory; write L10.M222"),
        ("M" * 5_000, "does not name a memory"),
    ],
)
def test_what_names_no_memory_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(MemoryIdError) as caught:
        names(text)
    assert sentence in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_list_is_read_as_it_was_written_and_refused_by_another_model(tmp_path: Path) -> None:
    listed = [(MemoryId(0, 3), 1, 0.5), ("L1.E0.M1", -1, float("nan")), (MemoryId(0, 3), -1, 0.25)]
    path = save_list(tmp_path / "a=b*.json", listed, model="it", made_by={"model": "aa"})
    rows = json.loads(path.read_text())["memories"]
    assert rows == [{"memory": "L0.M3", "sign": 1, "weight": 0.5}, {"memory": "L1.E0.M1", "sign": -1, "weight": None}]
    assert names(f"@{path}") == "L0.M3 L1.E0.M1"
    with pytest.raises(ModelDiffers, match=r"lists memories of it, another model than other \(fingerprint aa"):
        names(f"@{path}", Holder("bb", "other"))
    two = save_list(tmp_path / "two", listed, model="second", made_by={"model": ["aa", "cc"]})
    assert json.loads(two.read_text())["fingerprint"] == "cc"
    assert names(f"@{two}") == names(f"@{two}", Holder("cc"))  # a list of diff is of both its models
    with pytest.raises(ModelDiffers):
        names(f"@{two}", Holder("dd"))
    with pytest.raises(StoreFailed):
        save_list(path / "inside", listed, model="it", made_by={"model": "aa"})
    assert [str(one) for one in interventions_of([f"@{path}=0.5@last"], of=Holder())] == [
        "L0.M3=0.5@last",
        "L1.E0.M1=0.5@last",
    ]


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"memories": []}', '{"model": "it", "fingerprint": "aa", "memories": []}'),
        *('{"model": "it", "fingerprint": "aa", "memories": ["L0.M1"]}', "\x00", "[" * 100_000),
        '{"model": 1, "fingerprint": "aa", "memories": [{"memory": "L0.M1"}]}',
        '{"model": "it", "fingerprint": null, "memories": [{"memory": "L0.M1"}]}',
        '{"model": "it", "fingerprint": "aa", "memories": [{"memory": 7}]}',
        '{"model": "it", "fingerprint": "aa", "memories": [{"memory": "7"}]}',
        '{"model": "it", "fingerprint": "aa", "memories": [{"memory": "L0.M1"}], "made_by": {"model": [1]}}',
    ],
)
def test_a_file_that_is_no_list_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "list").write_text(text)
    with pytest.raises((OptionError, MemoryIdError)):
        names(f"@{tmp_path / 'list'}")
    with pytest.raises(MnemoscopeError):
        names(f"@{tmp_path}")


def test_changes_of_many_are_those_of_each() -> None:
    one = [Intervention(MemoryId(0, at), "scale", 2.0, "last") for at in (1, 2)]
    assert list(interventions_of(["L0.M1-2*2@last"], of=Holder())) == one
    assert interventions_of({"L0.M1-2": 0.5, "L0.M0": 1.0}, of=Holder()) == tuple(
        Intervention(MemoryId(0, at), value=value) for at, value in ((1, 0.5), (2, 0.5), (0, 1.0))
    )
    assert interventions_of(["L0=0"]) == ()  # its form alone
    for wrong in ("L0.M1-=0", "L0=x", "L=0", "@", "L0.M0-1", "L0.M1 L0.M2=0"):
        with pytest.raises(InterventionError, match="is not a change of a memory"):
            interventions_of([wrong], of=Holder())
    with pytest.raises(OptionError, match="is no list of memories"):
        interventions_of(["@nowhere=0"])
    with pytest.raises(MemoryIdError, match=r"L0\.M9 is not in it"):
        interventions_of(["L0.M0-9=0"], of=Holder())


def test_commands_take_a_list_that_another_saved(handbuilt: Path, tmp_path: Path, capsys: Capture) -> None:
    path = str(tmp_path / "paris.json")
    assert main(["search", str(handbuilt), "--promotes", " Paris", "--json", "--save-list", path]) == 0
    found = [hit["memory"] for hit in json.loads(capsys.readouterr().out)["hits"]]
    rows = json.loads(Path(path).read_text())["memories"]
    assert [row["memory"] for row in rows] == found
    assert {row["sign"] for row in rows} == {1}
    assert main(["show", str(handbuilt), f"@{path}", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["memories"]
    assert [one["memory"] for one in shown] == found
    assert main(["show", str(handbuilt), found[0], "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert {name: alone[name] for name in shown[0]} == shown[0]
    assert main(["show", str(handbuilt), "L0.M0-1"]) == 0
    assert "L0.M1" in capsys.readouterr().out
    text = str(tmp_path / "text.json")
    assert main(["search", str(handbuilt), "capital", "--save-list", text]) == 0
    capsys.readouterr()
    assert json.loads(Path(text).read_text())["memories"]
    assert main(["search", str(handbuilt), "--tokens-like", "a", "--save-list", text]) == 2
    assert "--save-list is of memories" in capsys.readouterr().err
    assert main(["trace", "handmade:planted", "the cat", "--set", f"@{path}=0"]) == 2
    assert "another model than handmade:planted" in capsys.readouterr().err.splitlines()[-1]


def test_a_list_of_attribute_is_switched_off_by_trace(tmp_path: Path, capsys: Capture) -> None:
    path, asked = tmp_path / "list.json", ["handmade:planted", "the cat sat on the"]
    assert main(["attribute", *asked, "--json", "--save-list", str(path)]) == 0
    listed = {row["memory"]: row for row in json.loads(capsys.readouterr().out)["memories"]}
    rows = json.loads(path.read_text())["memories"]
    assert [row["memory"] for row in rows] == list(listed)
    assert all(row["weight"] == listed[row["memory"]]["ablation"] for row in rows)
    assert all(row["sign"] == (1 if listed[row["memory"]]["coefficient"] > 0 else -1) for row in rows)
    changed = []
    for sets in ([f"@{path}=0"], [f"{name}=0" for name in listed]):
        assert main(["trace", *asked, "--json", *(word for one in sets for word in ("--set", one))]) == 0
        changed.append(json.loads(capsys.readouterr().out)["comparison"])
    assert changed[0] == changed[1]
    assert changed[0]["interventions"] == [f"{name}=0" for name in listed]
