"""Results that are written to a file and opened again."""

import json
from pathlib import Path
from typing import Any

import pytest

import mnemoscope as ms
from mnemoscope.auditing import AuditOptions, audit
from mnemoscope.cli import main
from mnemoscope.errors import OptionError
from mnemoscope.models.opening.handmade.models import PLANTED_SENTENCES
from mnemoscope.tracing import compare

PROMPT = PLANTED_SENTENCES[0]


@pytest.fixture(scope="module")
def model() -> ms.LanguageModel:
    return ms.load_model("handmade:planted", device="cpu")


@pytest.fixture(scope="module")
def atlas(model: ms.LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> ms.Atlas:
    folder = tmp_path_factory.mktemp("saved")
    (folder / "text.txt").write_text("\n".join(PLANTED_SENTENCES) + "\n")
    return ms.mine(model, folder / "text.txt", out=folder / "atlas", split="line")


def results(model: ms.LanguageModel, atlas: ms.Atlas) -> dict[str, Any]:
    other = " ".join(reversed(PROMPT.split()))
    return {
        "trace": ms.trace(model, PROMPT, interventions=["L0.M0=0@last"]),
        "comparison": compare(model, PROMPT, {"L0.M1": 2.0}, tokens=2),
        "attribution": ms.attribute(model, PROMPT, atlas=atlas, singles=4),
        "difference": ms.diff(model, PROMPT, other_prompt=other),
        "atlases": ms.compare(atlas, atlas),
        "audit": audit(model, list(PLANTED_SENTENCES[:2]), AuditOptions(alternatives=19), atlas=atlas),
    }


def test_what_is_read_off_an_atlas_says_where_it_comes_from(
    atlas: ms.Atlas, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = {"model": atlas.manifest.model.fingerprint, "atlas": atlas.manifest_hash, "seed": 0}
    found = ms.answer(atlas, "figure5")
    assert found.made_by is not None
    assert found.made_by.items() >= (expected | {"options": {"question": "value_rank"}}).items()
    assert found.filter(found["layer"].is_null()).height == found["layer"].null_count() > 0
    commands = {
        "show L0.M0": {"memory": "L0.M0"},
        "search a --in words": {"text": "a", "fields": ["words"], "limit": 20, "offset": 0, "layers": None},
        "search --promotes mat": {"token": "mat", "search": "promotes", "limit": 20, "offset": 0, "layers": None},
        "search --tokens-like mat": {"text": "mat", "limit": 20},
        "inspect": {},
    }
    for words, options in commands.items():
        verb, *rest = words.split()
        assert main([verb, str(atlas), *rest, "--json"]) == 0
        origin = json.loads(capsys.readouterr().out)["made_by"]
        assert origin.items() >= (expected | {"options": options}).items(), words
        assert origin.keys() == {"model", "atlas", "package", "options", "seed"}
    assert main(["analyze", str(atlas), "value_rank", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)["answers"]["value_rank"]
    assert document["made_by"] == dict(found.made_by)
    assert document == json.loads((atlas / "analyses" / "value_rank.json").read_text())


def test_inspect_says_which_model_and_text(
    model: ms.LanguageModel, atlas: ms.Atlas, capsys: pytest.CaptureFixture[str]
) -> None:
    text = str(atlas.path.parent / "text.txt")
    for more, corpus, seed in (([], None, None), (["--corpus", text, "--split", "line", "--seed", "3"], text, 3)):
        assert main(["inspect", "handmade:planted", "--device", "cpu", "--json", *more]) == 0
        origin = json.loads(capsys.readouterr().out)["made_by"]
        assert (origin["model"], origin["atlas"], origin["seed"]) == (model.fingerprint, None, seed)
        assert origin["options"]["corpus"] == corpus
        assert origin["options"]["dequantize"] is False


def test_a_result_says_where_it_comes_from_and_is_opened_again(
    model: ms.LanguageModel, atlas: ms.Atlas, tmp_path: Path
) -> None:
    for name, result in results(model, atlas).items():
        path = result.save(tmp_path / f"{name}.json")
        again = ms.open_result(path)
        assert type(again) is type(result)
        assert again.to_dict() == json.loads(json.dumps(result.to_dict())), name
        assert repr(again) == repr(result)
        assert str(again) == str(result)
        origin = json.loads(path.read_text())["made_by"]
        assert origin == json.loads(json.dumps(dict(result.made_by)))
        assert origin.keys() == {"model", "atlas", "package", "options", "seed"}
        assert model.fingerprint in (origin["model"], *origin["model"])
        hashes = {
            "attribution": atlas.manifest_hash,
            "atlases": [atlas.manifest_hash] * 2,
            "audit": atlas.manifest_hash,
        }
        assert origin["atlas"] == hashes.get(name)
        again.save(tmp_path / "again.json")
        assert ms.open_result(tmp_path / "again.json").to_dict() == again.to_dict()


def test_frames_keep_their_types(model: ms.LanguageModel, atlas: ms.Atlas, tmp_path: Path) -> None:
    found = ms.attribute(model, PROMPT, atlas=atlas, singles=4)
    again = ms.open_result(found.save(tmp_path / "a.json"))
    assert again.memories.schema == found.memories.schema
    assert again.memories.equals(found.memories)
    assert again.chart().to_dict() == found.chart().to_dict()


@pytest.mark.parametrize(
    "content", ["{}", "no JSON", '{"saved": 3}',
                '{"saved": {"kind": "Path", "fields": {}}}', '{"saved": {"kind": "Trace"}}',
                '{"saved": {"kind": "Trace", "fields": {"colour": "red"}}}', '{"saved": {"kind": [], "fields": {}}}']
)  # fmt: skip
def test_what_is_no_result(content: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(OptionError, match=r"x\.json is not a file that the save\(\) of a result of this version wrote"):
        ms.open_result(tmp_path / "x.json")
    with pytest.raises(OptionError, match="missing"):
        ms.open_result(tmp_path / "missing.json")
