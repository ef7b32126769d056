"""Results that are written to a file and opened again."""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import mnemoscope as ms
from mnemoscope.attribution import attribute_prompts, diff_prompts
from mnemoscope.auditing import audit
from mnemoscope.cli import main
from mnemoscope.errors import OptionError
from mnemoscope.models.opening.handmade.models import PLANTED_SENTENCES
from mnemoscope.tracing import compare
from support.hostile_json import ABSENT, changed, entries
from support.mined import mined_text

PROMPT = PLANTED_SENTENCES[0]


@pytest.fixture(scope="module")
def model() -> ms.LanguageModel:
    return ms.load_model("handmade:planted", device="cpu")


@pytest.fixture(scope="module")
def atlas(model: ms.LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> ms.Atlas:
    folder = tmp_path_factory.mktemp("saved")
    return mined_text(model, folder, "\n".join(PLANTED_SENTENCES) + "\n")


def results(model: ms.LanguageModel, atlas: ms.Atlas) -> dict[str, Any]:
    other = " ".join(reversed(PROMPT.split()))
    return {
        "trace": ms.trace(model, PROMPT, interventions=["L0.M0=0@last"]),
        "comparison": compare(model, PROMPT, {"L0.M1": 2.0}, tokens=2),
        "attribution": ms.attribute(model, PROMPT, atlas=atlas, singles=4),
        "difference": ms.diff(model, PROMPT, other_prompt=other),
        "atlases": ms.compare(atlas, atlas),
        "prompts": attribute_prompts(model, [{"prompt": one} for one in PLANTED_SENTENCES[:2]], atlas=atlas),
        "two prompts": diff_prompts(model, [{"prompt": PROMPT, "other_prompt": other}]),
        "audit": audit(model, list(PLANTED_SENTENCES[:2]), alternatives=19, atlas=atlas),
    }


def test_what_is_read_off_an_atlas_says_where_it_comes_from(
    atlas: ms.Atlas, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = {"model": atlas.manifest.model.fingerprint, "atlas": atlas.manifest_hash, "seed": 0}
    found = ms.answer(atlas, "figure5")
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
        assert (repr(again), str(again)) == (repr(result), str(result))
        origin = json.loads(path.read_text())["made_by"]
        assert origin == json.loads(json.dumps(dict(result.made_by)))
        assert origin.keys() == {"model", "atlas", "package", "options", "seed"}
        assert model.fingerprint in (origin["model"], *origin["model"])
        hashes = {
            "attribution": atlas.manifest_hash,
            "atlases": [atlas.manifest_hash] * 2,
            "audit": atlas.manifest_hash,
            "prompts": atlas.manifest_hash,
        }
        assert origin["atlas"] == hashes.get(name)
        again.save(tmp_path / "again.json")
        assert ms.open_result(tmp_path / "again.json").to_dict() == again.to_dict()


def test_prompts_that_never_part_have_empty_frames_of_the_same_columns(
    model: ms.LanguageModel, atlas: ms.Atlas, tmp_path: Path
) -> None:
    same = ms.load_model("handmade:planted", device="cpu")
    found = diff_prompts(model, [{"prompt": PROMPT}], other=same, atlas=atlas)
    assert (found.prompts, found.never_parted, found.memories.height) == (0, 1, 0)
    assert found.memories.schema == pl.Schema(
        {"memory": pl.String, "change": pl.Float64, "low": pl.Float64, "high": pl.Float64, "label": pl.String}
    )
    assert ms.open_result(found.save(tmp_path / "x.json")).to_dict() == found.to_dict()


def test_frames_keep_their_types(model: ms.LanguageModel, atlas: ms.Atlas, tmp_path: Path) -> None:
    found = ms.attribute(model, PROMPT, atlas=atlas, singles=4)
    again = ms.open_result(found.save(tmp_path / "a.json"))
    assert again.memories.schema == found.memories.schema
    assert again.memories.equals(found.memories)
    assert again.chart().to_dict() == found.chart().to_dict()


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        "no JSON",
        '{"saved": 3}',
        '{"saved": {"kind": "Path", "fields": {}}}',
        '{"saved": {"kind": "Trace"}}',
        '{"saved": {"kind": "Trace", "fields": {"colour": "red"}}}',
        '{"saved": {"kind": [], "fields": {}}}',
    ],
)
def test_what_is_no_result(content: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(OptionError, match=r"x\.json is not a file that the save\(\) of a result of this version wrote"):
        ms.open_result(tmp_path / "x.json")
    with pytest.raises(OptionError, match="missing"):
        ms.open_result(tmp_path / "missing.json")


NOWHERE: list[Any] = [2**70, "\ud800", [[0]], {"frame": ""}, {"frame": "AAAA"}]
"""What no field holds, but for `made_by`, whose options may be anything."""
STRANGE: list[Any] = [*NOWHERE, ABSENT, None, True, -1, 0.5, "text", [], {}]


@pytest.fixture(scope="module")
def saved(
    model: ms.LanguageModel, atlas: ms.Atlas, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("all")
    return {name: json.loads(one.save(folder / name).read_text()) for name, one in results(model, atlas).items()}


def opens(document: dict[str, Any], path: Path) -> bool:
    """Whether the document is opened, and can then be shown; any error but OptionError gets out."""
    path.write_text(json.dumps(document))
    try:
        result = ms.open_result(path)
    except OptionError:
        return False
    for shown in ("__str__", "__repr__", "to_dict", "_repr_html_"):
        getattr(result, shown, str)()
    return True


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    "name", ["prompts", "attribution", "comparison", "difference", "two prompts", "atlases", "audit", "trace"]
)
def test_every_entry_of_every_kind_is_checked_when_opened(
    name: str, saved: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    """Refused, or opened and shown; what has another type is refused wherever a type is declared."""
    fields = saved[name]["saved"]["fields"]
    places = [at for at in entries(fields) if at[0] not in ("made_by", "places", "before", "after") or len(at) < 6][:60]
    for at in places:
        for new in STRANGE:
            document = {"saved": saved[name]["saved"] | {"fields": changed(fields, at, new)}}
            opened = opens(document, tmp_path / "x.json")
            assert not (opened and len(at) == 1 and at[0] != "made_by" and new in NOWHERE), (at, new)


def with_frame(document: dict[str, Any], spoil: Callable[[pl.DataFrame], pl.DataFrame], **options: Any) -> Any:
    """The saved attribution with another frame of memories."""
    copy = json.loads(json.dumps(document))
    fields = copy["saved"]["fields"]
    rows = pl.read_ipc_stream(BytesIO(b64decode(fields["memories"]["frame"])))
    spoil(rows).write_ipc_stream(buffer := BytesIO(), compat_level=pl.CompatLevel.oldest(), **options)
    fields["memories"] = {"frame": b64encode(buffer.getvalue()).decode()}
    return copy


def test_frames_have_the_columns_that_are_declared(saved: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    good = saved["attribution"]
    assert opens(with_frame(good, lambda rows: rows), tmp_path / "x.json")
    assert opens(with_frame(good, lambda rows: rows.clear()), tmp_path / "x.json")
    spoilt: dict[str, Callable[[pl.DataFrame], pl.DataFrame]] = {
        "another type": lambda rows: rows.with_columns(pl.col("position").cast(pl.String)),
        "text for texts": lambda rows: rows.with_columns(pl.col("promotes").list.join(" ")),
        "a null": lambda rows: rows.with_columns(direct=pl.lit(None, pl.Float64)),
        "missing": lambda rows: rows.drop("coefficient"),
        "unknown": lambda rows: rows.with_columns(colour=pl.lit("red")),
        "categories": lambda rows: rows.with_columns(pl.col("memory").cast(pl.Categorical)),
    }
    for how, spoil in spoilt.items():
        assert not opens(with_frame(good, spoil), tmp_path / "x.json"), how


def test_a_frame_that_unpacks_is_refused_before_it_does(saved: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    """As what `save` never compresses, so that the same rows are refused when they are few, too."""
    for times in (1, 50_000):
        many = with_frame(saved["attribution"], lambda rows, n=times: pl.concat([rows] * n), compression="zstd")
        assert not opens(many, tmp_path / "x.json")


@pytest.mark.parametrize("deep", ["[" * 900 + "]" * 900, '{"a":' * 900 + "0" + "}" * 900])
def test_a_document_that_is_nested_deep(deep: str, saved: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    copy = changed(saved["attribution"], ("saved", "fields", "made_by"), "DEEP")
    (tmp_path / "x.json").write_text(json.dumps(copy).replace('"DEEP"', deep))
    with pytest.raises(OptionError, match="is not a file that"):
        ms.open_result(tmp_path / "x.json")


@pytest.mark.parametrize("name", ["attribution", "trace", "audit", "comparison"])
def test_control_codes_of_a_stranger_reach_no_terminal(
    name: str, saved: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    at = ("saved", "fields", *(("before",) if name == "comparison" else ()), "model")
    (tmp_path / "x.json").write_text(json.dumps(changed(saved[name], at, "\x1b]0;hello\x07\u202e")))
    result = ms.open_result(tmp_path / "x.json")
    for text in (str(result), repr(result)):
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert "\u241b]0;hello\u2407\\u202e" in str(result) + repr(result)
