"""What the terminal has, Python has: each verb beside its function, with the same options and the same answers."""

import dataclasses
import inspect
import json
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import typer.main

import mnemoscope as ms
from mnemoscope.annotations import open_store
from mnemoscope.cli import main
from mnemoscope.cli.app import GROUPS, app
from mnemoscope.errors import OptionError
from mnemoscope.foundation.options.declared import keyword_of
from mnemoscope.models.opening.handmade.models import PLANTED_SENTENCES
from mnemoscope.training import Recipe, TextSource

NAME, PROMPT = "handmade:planted", "the old"
TWINS = {
    **{verb: verb for verb in ("mine", "merge", "extend", "verify", "search", "trace", "attribute", "diff", "compare")},
    **{"audit": "audit", "train": "train", "analyze": "answer", "report": "write_report", "show": "open_atlas"},
    **{"lens": "fit_lenses", "export": "export", "push": "push"},
}
WITHOUT = {
    "demo": "mine, answer and write_report, of builtin:pydocs",
    "inspect": "what load_model and open_atlas return has these facts; the estimate is for whoever is about to wait",
    "serve": "a server, which ends with its command",
    "mcp": "a server for one client, on standard input and output",
    "worker": "a process of a fleet, which its launcher starts",
    "status": "of a run in another process; of one's own progress tells",
}
"""Verbs without a function, and why."""
SHARED = {
    **dict.fromkeys(("json", "debug", "help"), "results are objects, whose to_dict is the document"),
    **dict.fromkeys(("chat", "messages", "whole"), "the messages of a chat are a prompt"),
    "prompts": "attribute_prompts, diff_prompts",
    **dict.fromkeys(("save_list", "fail_if"), "files and exit codes of scripts"),
}
ELSEWHERE = {
    "mine": {*("workers", "gpus_per_worker", "ray", "prepare", "launch", "print", "allow_mixed_devices")},  # fleets
    "verify": {"atlas"},  # path
    "search": {"where", "promotes", "demotes", "fires_on", "offset", "tokens_like"},  # fields, by, limit; open_index
    "trace": {"changes", "generate", "temperature", "seed", "position", "figure1", "out"},  # interventions; generate
    "attribute": {"graph"},  # write_graph
    "diff": {"save"},  # restore
    "compare": {"atlases", "save"},  # atlas, other, more; AtlasComparison.save
    "analyze": {"questions", "patterns", "judgements"},  # question; annotations.import_judgements
    "report": {"browse", "memories"},  # web.static_export.write_pages
    "show": {"atlas", "memory", "limit"},  # path, and atlas[memory]
    "train": {"corpus", "plant", "plant_times"},  # corpora and plants of a TextSource
}
"""Options that are no keyword of the verb's function, and in a comment what stands for them."""
OPTIONS = {
    one.__name__: next(iter(inspect.signature(one).parameters.values())).annotation for one in chain(*GROUPS.values())
}
"""The dataclass of a verb's options."""
OTHERS = {
    ("extend", "tables"): "() and None",
    ("lens", "kinds"): "a tuple, and its words",
    ("diff", "restored"): "0 and None",
    ("search", "layers"): "numbers, not 0-3,7",
    ("train", "out"): "none, and mnemoscope-model",
}
"""Keywords with another default than their option, and both."""
WORDS = {("compare", "models"), ("audit", "secrets"), ("trace", "memories"), ("diff", "restored")}
"""Keywords that mean more or less than their option, and say so."""


@pytest.fixture
def atlas(planted: Path, copied: Any) -> ms.Atlas:
    return ms.open_atlas(copied(planted))


def verbs() -> dict[str, Any]:
    return typer.main.get_command(app).commands  # type: ignore[attr-defined, no-any-return]


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    capsys.readouterr()
    assert main([str(word) for word in (*words, "--json")]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_every_verb_has_its_function_or_a_reason() -> None:
    assert not TWINS.keys() & WITHOUT.keys()
    assert {*TWINS, *WITHOUT} == set(verbs())
    assert all(len(reason) > 20 for reason in WITHOUT.values())
    for verb, function in TWINS.items():
        assert function in ms.__all__, verb
        assert inspect.isfunction(getattr(ms, function)), verb


def flattened(kind: Any) -> Iterator[Any]:
    for one in dataclasses.fields(kind):
        yield from flattened(one.type) if dataclasses.is_dataclass(one.type) else [one]


@pytest.mark.parametrize("verb", TWINS)
def test_a_function_states_its_keywords_as_their_options_are_declared(verb: str) -> None:
    """The same default, and in `Args:` the same words, perhaps with more behind them."""
    function = getattr(ms, TWINS[verb])
    arguments = dict(re.findall(r"^ +(\w+): (\S.*)$", inspect.getdoc(function).partition("Args:\n")[2], re.M))
    for one in flattened(OPTIONS[verb]):
        keyword, declared = keyword_of(one), one.metadata
        parameter = inspect.signature(function).parameters.get(keyword)
        if parameter is None or not declared or declared["argument"]:
            continue
        if (verb, keyword) not in OTHERS:
            default = inspect.Parameter.empty if one.default is dataclasses.MISSING else one.default
            assert parameter.default == default, keyword
        help = declared["help"].partition(" (")[0].rstrip(".").replace("MODEL", "`model`")
        if (verb, keyword) not in WORDS:
            assert re.match(rf"{re.escape(help)}(\W|$)", arguments[keyword]), keyword


@pytest.mark.parametrize("verb", TWINS)
def test_options_are_keywords(verb: str) -> None:
    """Those of a model are of `load_model`, those of `train` of its Recipe and TextSource."""
    kinds = [getattr(ms, TWINS[verb]), ms.load_model, *([Recipe, TextSource] if verb == "train" else [])]
    keywords = {name for kind in kinds for name in inspect.signature(kind).parameters} | {"dictionary"}
    left = {option.name for option in verbs()[verb].params} - keywords - SHARED.keys()
    assert left == ELSEWHERE.get(verb, set())


def test_a_room_does_not_take_a_function_s_name() -> None:
    from mnemoscope.search import index

    assert index.Index.__module__ == "mnemoscope.search.index"
    assert ms.search.__module__ == "mnemoscope.search.found"
    assert list(inspect.signature(ms.search).parameters)[:4] == ["atlas", "text", "fields", "limit"]


def test_search(atlas: ms.Atlas, capsys: pytest.CaptureFixture[str]) -> None:
    for fields in (None, ["triggers"], ["values", "bottom"]):
        options = [] if fields is None else ["--in", ",".join(fields)]
        said = printed(capsys, "search", atlas, "cat", *options)
        found = ms.search(atlas, "cat", fields)
        assert found["memory"].to_list() == [hit["memory"] for hit in said["hits"]] != []
        assert found["memories"].to_list() == [hit["memories"] for hit in said["hits"]]
        assert found["score"].to_list() == [hit["score"] for hit in said["hits"]]
        assert found["text"].str.contains("«").all()
        assert found.made_by["atlas"] == said["made_by"]["atlas"]
        assert found.select("memory").height == found.height
    assert ms.search(str(atlas.path), "cat", "triggers", 1).height == 1
    assert set(ms.search(Path(atlas.path), "cat", layers=[0])["memory"].str.slice(0, 3)) == {"L0."}
    token = atlas.token_text([atlas.table("values", layer=0)["top_tokens"][0][0]])[0]
    for by, option in {"promotes": "--promotes", "demotes": "--demotes", "fires": "--fires-on"}.items():
        asked = " cat" if by == "fires" else token
        said = printed(capsys, "search", atlas, option, asked)["hits"]
        rows = ms.search(atlas, asked, by=by).to_dicts()  # type: ignore[arg-type]
        assert rows == [{name: hit[name] for name in rows[0]} for hit in said] != []
    for wrong, line in (
        ({"by": "colour"}, "by='colour'"),
        ({"by": "fires", "fields": ["values"]}, "fields go with text"),
    ):
        with pytest.raises(OptionError, match=line):
            ms.search(atlas, "cat", **wrong)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="field 'nothing' cannot be searched"):
        ms.search(atlas, "cat", "nothing")


def test_audit(atlas: ms.Atlas, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strings = tmp_path / "strings.txt"
    strings.write_text("\n".join(PLANTED_SENTENCES[:2]) + "\n")
    options = {"alternatives": 19, "vary": "digits", "candidates": 3, "top": 2, "seed": 4, "neighbours": 3}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    said = printed(capsys, "audit", NAME, "--secrets", strings, "--atlas", atlas, *words)
    found: Any = ms.audit(NAME, strings, atlas=atlas.path, progress=False, **options)
    assert json.loads(json.dumps(found.to_dict())) == {name: said[name] for name in found.to_dict()}
    one: Any = ms.audit(NAME, PLANTED_SENTENCES[0], atlas=str(atlas), progress=False, **options)
    assert one.secrets == found.secrets[:1]
    with pytest.raises(OptionError, match="'words' is not known"):
        ms.audit(NAME, "the cat", vary="words")
    with pytest.raises(TypeError, match="unexpected keyword argument 'alternative'"):
        ms.audit(NAME, "the cat", alternative=19)


def test_prompts(atlas: ms.Atlas, capsys: pytest.CaptureFixture[str]) -> None:
    def as_printed(result: Any) -> Any:
        return json.loads(json.dumps(result.to_dict()))

    assert printed(capsys, "trace", NAME, PROMPT, "--top", 3)["trace"] == as_printed(ms.trace(NAME, PROMPT, top=3))
    said = printed(capsys, "attribute", NAME, PROMPT, "--for", " mat", "--singles", 3, "--top", 4, "--atlas", atlas)
    found: Any = ms.attribute(NAME, PROMPT, target=" mat", singles=3, top=4, atlas=atlas.path, progress=False)
    assert said["memories"] == as_printed(found)["memories"] != []
    words = ["--other-prompt", "the new", "--for", " mat", "--against", " house", "--top", 3]
    said = printed(capsys, "diff", NAME, PROMPT, *words)
    found = ms.diff(NAME, PROMPT, other_prompt="the new", target=" mat", against=" house", top=3, progress=False)
    assert said["memories"] == as_printed(found)["memories"] != []


def test_atlases(atlas: ms.Atlas, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(atlas.path)
    said = printed(capsys, "show", folder, "L0.M0")
    assert said["triggers"] == ms.open_atlas(folder)["L0.M0"].triggers(None).to_dicts()
    assert printed(capsys, "verify", folder)["problems"] == ms.verify(folder) == []
    printed(capsys, "analyze", folder, "value_agreement")
    [document] = [json.loads(one.read_text()) for one in (atlas / "analyses").glob("value_agreement.json")]
    names = ["layer", "name", "value", "count", "low", "high"]
    answered = ms.answer(folder, "value_agreement").select(names)
    assert document["totals"] == answered.filter(pl.col("layer").is_null()).drop("layer").to_dicts()
    assert (
        printed(capsys, "compare", folder, folder)["layers"]
        == ms.compare(folder, folder, progress=False).layers.to_dicts()
    )
    assert set(ms.extend(folder, Path(NAME), ["roles"], progress=False).kept) == {"roles"}


def test_names_and_folders_stand_for_what_they_open(atlas: ms.Atlas) -> None:
    """Wherever `Args:` says "or a name", "or its folder" (tests/tracing/test_opened.py has the others)."""
    folder = Path(atlas.path)
    assert ms.names("L0.M1", model=str(folder)) == ms.names("L0.M1", model=folder) == ms.names("L0.M1", model=atlas)
    assert ms.names("L0.M1", model=NAME)["module"]
    assert (
        ms.figure1(NAME, PROMPT, 0, atlas=folder).numbers
        == ms.figure1(ms.load_model(NAME), PROMPT, 0, atlas=atlas).numbers
    )  # type: ignore[arg-type]
    assert ms.chart(folder, "value_agreement").to_dict() == ms.chart(atlas, "value_agreement").to_dict()
    with open_store(folder) as store:
        assert store.atlas.path == folder
    for wrong in (NAME, Path(NAME)):
        with pytest.raises(OptionError, match="is a name"):
            ms.intervene(wrong, {"L0.M0": 0.0}).__enter__()  # type: ignore[arg-type]


def test_a_table_of_all_layers_says_which(atlas: ms.Atlas) -> None:
    for name in ("triggers", "activity", "values", "neighbours"):
        whole = atlas.table(name)
        assert (whole.columns[0], whole.schema["layer"]) == ("layer", pl.Int16)
        for layer in atlas.layers:  # one layer's is what its file holds
            assert whole.filter(pl.col("layer") == layer).drop("layer").equals(atlas.table(name, layer=layer))
    assert atlas.table("values", columns=["memory", "value_norm"]).columns == ["layer", "memory", "value_norm"]
