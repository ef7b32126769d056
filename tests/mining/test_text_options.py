"""Options of how a text is read: beginning token, special tokens, chats, bad rows; and what is no text but looks so."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

import mnemoscope as ms
from mining.conftest import END, ENDS, byte_tokenizer, load_bytes, odd_text
from mnemoscope.atlas import open_atlas
from mnemoscope.atlas.tables import model_words
from mnemoscope.cli import main
from mnemoscope.errors import CorpusUnreadable, ModelUnsupported, OptionError
from mnemoscope.foundation.progress import NOTE
from mnemoscope.mining import merge, mine
from mnemoscope.models import load_model
from models.conftest import build
from models.expert_models import build_mixture

OPTIONS: dict[str, Any] = {"removals": 2, "prefixes": 20, "neighbours": 0, "batch_tokens": 128}
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'robot' %}{{ raise_exception('no robots') }}{% endif %}"
    "<|turn|>{{ m.role }}\n{{ m.content }}{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% endif %}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)


def chat_tokenizer() -> Any:
    found = byte_tokenizer(**ENDS)
    found.add_special_tokens({"additional_special_tokens": ["<|turn|>"]})
    found.chat_template = TEMPLATE
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a tokenizer that has a chat template."""
    place = tmp_path_factory.mktemp("models") / "model"
    build("gpt2-relu", bos_token_id=0, eos_token_id=0).save_pretrained(place)
    chat_tokenizer().save_pretrained(place)
    return place


def triggers(atlas: Path) -> pl.DataFrame:
    return pl.concat([pl.read_parquet(path) for path in sorted((atlas / "triggers").glob("*.parquet"))])


def rows(path: Path, found: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return path


@pytest.mark.full
def test_without_a_beginning_token_a_model_is_read_as_one_that_has_none(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(odd_text(30))
    hf = build("gpt2-relu", bos_token_id=None, eos_token_id=None)
    bare = mine(load_model(hf, tokenizer=byte_tokenizer()), tmp_path / "a.txt", out=tmp_path / "bare", **OPTIONS)
    asked = mine(str(folder), tmp_path / "a.txt", out=tmp_path / "none", beginning="none", **OPTIONS)
    for path in bare.path.rglob("*.parquet"):
        if path.name != "vocabulary.parquet":
            other = asked / path.relative_to(bare.path)
            assert pl.read_parquet(path).equals(pl.read_parquet(other)), path
    assert triggers(asked)["position"].min() == 1
    manifest = open_atlas(asked).manifest
    assert (manifest.plan["beginning"], manifest.model.beginning.kind) == ("none", "none")
    assert model_words(manifest.plan) == f"{folder.name} --beginning none"
    ms.extend(asked, tables=["width"])  # opens the model as the plan says


@pytest.mark.full
def test_parts_are_put_together_with_the_plan_s_beginning_and_bad_rows(folder: Path, tmp_path: Path) -> None:
    lines = [{"text": line} for line in odd_text(30).split("\n")]
    text = rows(tmp_path / "a.jsonl", [*lines, 3])
    given: dict[str, Any] = {**OPTIONS, "beginning": "the", "skip_bad_rows": 1, "skip_special": True, "sample": 0.8}
    whole = mine(str(folder), text, out=tmp_path / "whole", **given)
    parts = [mine(str(folder), text, out=tmp_path / f"{k}", part=f"{k}/2", **given) for k in (1, 2)]
    joined = merge(tmp_path / "joined", parts)
    assert (whole / "manifest.json").read_bytes() == (joined / "manifest.json").read_bytes()
    manifest = open_atlas(whole).manifest
    plan, counts = manifest.plan, manifest.corpus.counts
    assert [plan[name] for name in ("beginning", "skip_bad_rows", "skip_special", "sample")] == ["the", 1, True, 0.8]
    assert counts["documents"] + counts["documents_passed_over"] == len(lines)
    assert 0 < counts["documents_passed_over"] < counts["documents"]
    ms.extend(whole, model=str(folder), tables=["memorised"])  # reads the text again


@pytest.mark.fast(2)
@pytest.mark.parametrize(("asked", "token"), [("the", None), (END, 0), (" the", None), ("none", -1)])
def test_a_chosen_beginning_stands_before_every_prompt(asked: str, token: int | None, folder: Path) -> None:
    model = load_model(str(folder), beginning=asked)
    texts = model.vocabulary()[0]
    expected = None if token == -1 else texts.index(asked)
    assert token in (None, -1) or expected == token
    assert model.beginning.token == expected
    assert model.ends == {0}  # that what a text begins with is an ordinary token ends none
    [ids] = model.encode(["the cat sat"])
    before = [] if expected is None else [expected]
    with torch.no_grad():
        own = model.anatomy.model(torch.tensor([[*before, *ids]])).logits[0, -1]
    found = ms.trace(model, "the cat sat").to_dict()
    assert found["positions"][-1]["prediction"][0]["id"] == int(own.argmax())
    assert (found["beginning"] or {}).get("id") == expected
    usual = load_model(str(folder))
    assert (model.fingerprint == usual.fingerprint) == (asked == END)


@pytest.mark.parametrize("asked", ["no such", ""])
def test_a_beginning_that_is_no_token_is_refused(asked: str, folder: Path) -> None:
    with pytest.raises(OptionError, match=f"'{asked}' is not a token"):
        load_model(str(folder), beginning=asked)


def test_token_ids_name_their_beginning_in_decimal(tmp_path: Path) -> None:
    model = load_model(build("gpt2-relu", bos_token_id=0), tokenizer="ids", beginning="12")
    assert model.beginning.token == 12
    assert list(model.encode(["12 5 7", "0 5 7"])) == [[5, 7], [0, 5, 7]]


@pytest.mark.full
@pytest.mark.parametrize("per_sentence", [1, "all"])
@pytest.mark.parametrize("experts", [False, True], ids=["dense", "experts"])
def test_special_tokens_are_no_triggers_and_count_in_activity(
    per_sentence: int | str, experts: bool, tmp_path: Path
) -> None:
    hf = build_mixture("mixtral") if experts else build("llama", bos_token_id=0, eos_token_id=0)
    model = load_bytes(hf)
    text = rows(tmp_path / "a.jsonl", [{"ids": [5 + k, 0, 7 + 3 * k, 9, 0, 11 + k]} for k in range(20)])
    given: dict[str, Any] = {**OPTIONS, "ids_field": "ids", "triggers": 500, "validation": text}
    every = triggers(mine(model, text, out=tmp_path / "every", per_sentence="all", **given))
    kept = mine(model, text, out=tmp_path / "kept", per_sentence=per_sentence, skip_special=True, **given)
    mine(model, text, out=tmp_path / "usual", per_sentence=per_sentence, **given)
    keys = [name for name in ("expert", "memory", "sign", "sentence") if name in every.columns]
    found = triggers(kept)
    assert 0 in every["token"]
    assert 0 not in found["token"]
    # Layers stand one under the other in both, so coefficients tell them apart.
    expected = every.filter(pl.col("token") != 0)
    columns = [*keys, "position", "coefficient"]
    if per_sentence == "all":
        assert found.select(columns).sort(columns).equals(expected.select(columns).sort(columns))
    else:
        best = found.join(expected, on=columns, how="semi", nulls_equal=True)
        assert len(best) == len(found) > 0
        for layer, path in enumerate(sorted((kept / "triggers").glob("*.parquet"))):
            all_of = pl.read_parquet(tmp_path / "every" / "triggers" / path.name).filter(pl.col("token") != 0)
            own = pl.read_parquet(path)
            highest = all_of.group_by(keys).agg(pl.col("coefficient").abs().max())
            assert (
                own.select([*keys, pl.col("coefficient").abs()])
                .sort(keys)
                .equals(highest.select([*keys, "coefficient"]).sort(keys))
            ), layer
    for path in (kept / "activity").glob("*.parquet"):
        assert pl.read_parquet(path).equals(pl.read_parquet(tmp_path / "usual" / "activity" / path.name))


def test_special_tokens_need_somebody_who_says_which_they_are(tmp_path: Path) -> None:
    model = load_model(build("gpt2-relu", bos_token_id=0), tokenizer="ids")
    (tmp_path / "a.txt").write_text("5 6 7\n")
    with pytest.raises(OptionError, match="no tokenizer says which tokens of 'memory:"):
        mine(model, tmp_path / "a.txt", out=tmp_path / "atlas", skip_special=True)


def test_a_chat_is_read_through_the_model_s_template(folder: Path, tmp_path: Path) -> None:
    asked, answers = {"role": "user", "content": "the cat"}, [f"sat\n\non <|turn|> {k}." for k in range(20)]
    chats = [[asked, {"role": "assistant", "content": answer}] for answer in answers]
    text = rows(tmp_path / "a.jsonl", [{"x": {"messages": chat}} for chat in chats])
    atlas = mine(str(folder), text, out=tmp_path / "atlas", text_field="x.messages", **OPTIONS)
    stored = pl.read_parquet(atlas / "sentences" / "*.parquet").sort("sentence")
    tokenizer = chat_tokenizer()
    dated = [[{**one, "content": one["content"] + "2024"} for one in chat] for chat in chats]
    plain = TEMPLATE.replace("{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% endif %}", "")
    options: dict[str, Any] = {"tokenize": True, "return_dict": False, "chat_template": plain}
    expected = [tokenizer.apply_chat_template(chat, **options) for chat in dated]
    assert all(ids[0] == 0 for ids in expected)  # the model's own beginning, which stands there already
    assert len(expected[0]) < 64
    for ids, one in zip(stored["tokens"].to_list(), stored["document"].to_list(), strict=True):
        assert ids == expected[one][1:]
    assert stored["text"][0].startswith(f"{END}<|turn|>user\nthe cat2024{END}<|turn|>assistant\nsat\n\non <|turn|> ")
    plan = open_atlas(atlas).manifest.plan
    assert (plan["split"], plan["text_field"]) == ("document", "x.messages")
    assert ms.extend(atlas, tables=["memorised"])  # reads the text again


def test_chats_that_cannot_be_read_are_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    good = {"messages": [{"role": "user", "content": "the cat sat"}]}
    for wrong, said in (
        ({"messages": "text"}, "line 2: field 'messages' is not a list of messages, each with a role and its content"),
        ({"messages": [{"from": "user"}]}, "is not a list of messages"),
        ({"messages": [{"role": "robot", "content": ""}]}, "the chat template refuses these messages .no robots"),
    ):
        text = rows(tmp_path / "a.jsonl", [good, wrong])
        with pytest.raises(CorpusUnreadable, match=said):
            mine(str(folder), text, out=tmp_path / "atlas", text_field="messages", **OPTIONS)
    model = load_model(build("gpt2-relu", bos_token_id=0), tokenizer=byte_tokenizer(bos_token=END))
    with pytest.raises(ModelUnsupported, match="has no chat template for messages"):
        mine(model, rows(tmp_path / "a.jsonl", [good]), out=tmp_path / "atlas", text_field="messages", **OPTIONS)


def test_bad_rows_are_said_at_the_end_and_kept_in_the_manifest(folder: Path, tmp_path: Path, capsys: Any) -> None:
    text = tmp_path / "a.jsonl"
    text.write_text('{"text": "the cat sat on the mat."}\n{"text"\n' + '{"text": "the dog ran home."}\n\n[]\n')
    words = ["mine", str(folder), str(text), "--prefixes", "5", "--removals", "0", "--validation", str(text)]
    assert main([*words, "--out", str(tmp_path / "none")]) == 2
    assert "line 2 is not JSON" in capsys.readouterr().err
    assert main([*words, "--out", str(tmp_path / "two"), "--skip-bad-rows", "2"]) == 0
    said = capsys.readouterr().out
    assert "skipped 2 bad rows: a.jsonl: line 2, a.jsonl: line 5\n" in said
    assert "skipped 2 bad rows of the validation text: a.jsonl: line 2, a.jsonl: line 5\n" in said
    counts = open_atlas(tmp_path / "two").manifest.corpus.counts
    assert counts["bad_rows"] == {"count": 2, "rows": ["a.jsonl: line 2", "a.jsonl: line 5"]}
    assert counts["documents"] == 2
    assert str(tmp_path) not in json.dumps(counts)


def test_lines_that_differ_in_indentation_count_once_and_that_is_said(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("return x\n    return x\nthe cat\n")
    words = ["mine", str(folder), str(tmp_path / "a.txt"), "--prefixes", "0", "--removals", "0"]
    assert main([*words, "--out", str(tmp_path / "a"), "--split", "line"]) == 0
    said = capsys.readouterr().out
    assert "2 sentences, 1 duplicates" in said
    assert "(texts that differ only in white space at their ends, such as indentation, count as one)" in said


@pytest.mark.fast(2)
@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([5, 6, 7, 0, 0, 0], r"a row ends with several tokens 0 \(5 6 7 0 0 0\)"),
        ([0, 0, 5, 6, 7], r"a row begins with several tokens 0 \(0 0 5 6 7\)"),
        ([5, 6, 261, 261], r"ends with several tokens 261"),
    ],
    ids=["right", "left", "padding token"],
)
@pytest.mark.parametrize("tokenizer", [True, False], ids=["ids-field", "ids for a tokenizer"])
def test_padding_of_token_ids_is_refused(ids: list[int], said: str, tokenizer: bool, tmp_path: Path) -> None:
    hf = build("gpt2-relu", bos_token_id=0, eos_token_id=0, pad_token_id=261)
    with_pad = byte_tokenizer(**ENDS)
    with_pad.pad_token = with_pad.convert_ids_to_tokens(261)
    given: dict[str, Any] = {"removals": 0, "prefixes": 0, "neighbours": 0}
    model = load_model(hf, tokenizer=with_pad if tokenizer else "ids")
    good = [[5, 6, 7, 0], [0, 5, 6], [5, 0, 0, 6], [6, 6], [261, 5, 261]]

    def text(name: str, found: list[list[int]]) -> tuple[Path, dict[str, str]]:
        if tokenizer:
            return rows(tmp_path / f"{name}.jsonl", [{"ids": row} for row in found]), {"ids_field": "ids"}
        (tmp_path / f"{name}.txt").write_text("".join(" ".join(map(str, row)) + "\n" for row in found))
        return tmp_path / f"{name}.txt", {"split": "line"}

    path, options = text("bad", [*good, ids])
    with pytest.raises(CorpusUnreadable, match=said):
        mine(model, path, out=tmp_path / "atlas", **given, **options)
    path, options = text("good", good)
    atlas = mine(model, path, out=tmp_path / "atlas", validation=path, **given, **options)
    stored = pl.read_parquet(atlas / "sentences" / "*.parquet")["tokens"].to_list()
    assert set(map(tuple, stored)) == {tuple(row[1:] if row[0] == 0 else row) for row in good}


@pytest.mark.parametrize("field", ["text", "messages"])
def test_that_a_chat_template_is_not_used_is_said_once(field: str, folder: Path, tmp_path: Path) -> None:
    said: list[str] = []

    def hear(stage: str, done: float, total: float | None, note: str) -> None:
        if stage == NOTE:
            said.append(note)

    lines = [f"the cat {number}" for number in range(40)]
    chats = [{"text": line, "messages": [{"role": "user", "content": line}]} for line in lines]
    text = rows(tmp_path / "a.jsonl", chats)
    mine(str(folder), text, out=tmp_path / "atlas", text_field=field, progress=hear, **OPTIONS)
    assert said == (
        ["the model's chat template is not used: the text is read as it stands; --text-field messages reads chats"]
        if field == "text"
        else []
    )
