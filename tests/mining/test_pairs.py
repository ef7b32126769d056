"""Encoder-decoders on pairs of a source and a text: mined == one forward of the model itself for every question."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import mnemoscope as ms
from mnemoscope.atlas import open_atlas, verify
from mnemoscope.attribution import attribute_prompts, diff_prompts
from mnemoscope.cli import main
from mnemoscope.errors import CorpusUnreadable, OptionError
from mnemoscope.tracing import causal_check
from models.pair_models import PAIR_MODELS, WORDS, SlowPairs, build_pair_model, pair_tokenizer

Pair = tuple[list[int], list[int]]


def some_pairs(count: int, seed: int) -> list[Pair]:
    draw = random.Random(seed)

    def tokens(*lengths: int) -> list[int]:
        return [draw.randrange(4, WORDS) for _ in range(draw.choice(lengths))]

    pairs = [(tokens(1, 2, 4, 7), tokens(1, 2, 3, 6, 9)) for _ in range(count)]
    # One text with two sources is two sentences; one pair twice is one.
    return [*pairs, (pairs[0][0] + [5], pairs[0][1]), pairs[1]]


def as_words(tokens: list[int]) -> str:
    return " ".join(f"w{token}" for token in tokens)


def write_pairs(path: Path, pairs: list[Pair]) -> Path:
    rows = [{"from": as_words(source), "to": as_words(target)} for source, target in pairs]
    if path.suffix == ".parquet":
        pl.DataFrame(rows).write_parquet(path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def mine(kind: str, folder: Path, pairs: list[Pair], *, ending: str = "jsonl", **options: Any) -> Path:
    model = ms.load_model(build_pair_model(kind), tokenizer=pair_tokenizer(kind))
    texts = write_pairs(folder / f"pairs.{ending}", pairs)
    held_out = write_pairs(folder / f"held-out.{ending}", some_pairs(20, 9))
    named = {"source_field": "from", "text_field": "to", "validation": held_out, "progress": False}
    ms.mine(model, texts, out=folder / "atlas", seed=3, **{"triggers": 6} | named | options)
    return folder / "atlas"


@pytest.mark.fast(2)
@pytest.mark.parametrize("kind", ["t5", "bart", "gated t5", "marian", "m2m_100"])
def test_a_mined_encoder_decoder_is_its_own_forwards(kind: str, tmp_path: Path) -> None:
    pairs = some_pairs(40, 1)
    out = mine(kind, tmp_path, pairs, removals=3, batch_tokens=60, ending="parquet" if kind == "bart" else "jsonl")
    assert verify(out) == []
    slow, distinct = SlowPairs(kind, build_pair_model(kind)), pairs[:-1]
    assert open_atlas(out).manifest.model.reading.before == tuple(PAIR_MODELS[kind].start)
    stored = pl.read_parquet(sorted((out / "sentences").glob("*.parquet"))).sort("sentence")
    for row in stored.rows(named=True)[: len(distinct)]:
        source, target = distinct[row["sentence"]]
        assert (row["source"], row["text"], row["tokens"]) == (as_words(source), as_words(target), target)
        assert row["source_tokens"] == [*slow.framed, *source, 2]
    read = [slow.read(*pair) for pair in distinct]
    for layer in (0, 1):
        check_layer(out, layer, [coefficients[layer].double().numpy() for coefficients, _ in read], distinct)
        check_values(out, layer, kind, slow)
    check_predictions(out, slow, stored)
    check_removals(out, slow, distinct)


def check_layer(out: Path, layer: int, read: list[np.ndarray[Any, Any]], pairs: list[Pair]) -> None:
    """Triggers and activity, from coefficients `[position, memory]` of each pair."""
    every = np.concatenate(read)
    activity = pl.read_parquet(out / f"activity/layer-{layer:03d}.parquet").sort("memory")
    near = (np.abs(every) < 1e-5).sum(0)
    assert (np.abs(activity["positive"].to_numpy() - (every > 0).sum(0)) <= near).all()
    assert activity["prefixes"].to_list() == [len(every)] * every.shape[1]
    np.testing.assert_allclose(activity["max"], every.max(0), atol=1e-4)
    triggers = pl.read_parquet(out / f"triggers/layer-{layer:03d}.parquet")
    assert triggers.height > 100
    for (memory, sign), rows in triggers.group_by("memory", "sign"):
        best = sorted(max(sign * each[:, memory]) for each in read)[::-1][:6]
        got = (rows.sort("rank")["coefficient"] * sign).to_numpy()
        np.testing.assert_allclose(got, [each for each in best if each > 0], atol=1e-4)
        for row in rows.rows(named=True):
            _, target = pairs[row["sentence"]]
            assert abs(read[row["sentence"]][row["position"], memory] - row["coefficient"]) < 1e-4
            after = [*target, None][row["position"] + 1]
            assert (row["token"], row["next_token"]) == (target[row["position"]], after)


def check_values(out: Path, layer: int, kind: str, slow: SlowPairs) -> None:
    """The first token of each value, by what stands between it and the head."""
    model, values = slow.model, pl.read_parquet(out / f"values/layer-{layer:03d}.parquet").sort("memory")
    rows = slow.downs[layer].weight.detach().T.double()
    if "t5" in kind:
        folded = rows * model.decoder.final_layer_norm.weight.double()
    else:
        block = model.model.decoder.layers[layer]
        norm = model.model.decoder.layer_norm if kind == "m2m_100" else block.final_layer_norm
        folded = (rows - rows.mean(1, keepdim=True)) * norm.weight.double()
    scores = folded @ model.lm_head.weight.detach().T.double()
    assert values["top_tokens"].list.first().to_list() == scores.argmax(1).tolist()
    np.testing.assert_allclose(values["value_norm"], rows.norm(dim=1), rtol=1e-5)


def check_predictions(out: Path, slow: SlowPairs, stored: pl.DataFrame) -> None:
    """The model's own prediction after each held-out prefix, whose last layer's output it is."""
    prefixes = pl.read_parquet(out / "prefixes.parquet")
    last = pl.read_parquet(out / "predictions.parquet").filter(pl.col("layer") == 1)
    named = {row["sentence"]: row for row in stored.rows(named=True)}
    assert prefixes.height > 8
    tops = set()
    for prefix, output in zip(prefixes.rows(named=True), last.sort("prefix")["output_top"], strict=True):
        row = named[prefix["sentence"]]
        own = row["source_tokens"][len(slow.framed) : -1]
        _, logits = slow.read(own, row["tokens"][: prefix["position"] + 1])
        assert prefix["final_top"] == output == int(logits[-1].argmax())
        tops.add(output)
    assert len(tops) > 2


def check_removals(out: Path, slow: SlowPairs, pairs: list[Pair]) -> None:
    """Every change, by a forward without that token of the text or of the source."""
    removals, kinds = pl.read_parquet(out / "removals.parquet"), set()
    triggers = {layer: pl.read_parquet(out / f"triggers/layer-{layer:03d}.parquet") for layer in (0, 1)}
    sentence = {
        (layer, row["memory"], row["rank"]): row["sentence"]
        for layer, table in triggers.items()
        for row in table.filter(pl.col("sign") == 1).rows(named=True)
    }
    for row in removals.rows(named=True):
        source, target = pairs[sentence[row["layer"], row["memory"], row["trigger_rank"]]]
        text, given, at = target[: row["position"] + 1], list(source), row["removed_position"]
        del (given if row["removed"].startswith("source") else text)[at]
        coefficients, _ = slow.read(given, text)
        assert abs(float(coefficients[row["layer"]][-1, row["memory"]]) - row["removed_coefficient"]) < 1e-4, row
        of_kind = {"first": 0, "last": row["position"], "source_first": 0, "source_last": len(source) - 1}
        assert at == of_kind.get(row["removed"], at)
        kinds.add(row["removed"])
    assert kinds == {"first", "last", "random", "source_first", "source_last", "source_random"}


def test_the_same_text_with_another_source_is_another_prefix(tmp_path: Path) -> None:
    pairs = [([5, 6], [7, 8]), ([9, 4, 6], [7, 8]), ([5, 6], [7, 8, 9])]
    out = mine("t5", tmp_path, pairs, per_sentence="all", triggers=50)
    groups = pl.read_parquet(out / "triggers/layer-000.parquet").filter(pl.col("position") == 0)
    for _, rows in groups.group_by("memory", "sign"):
        shared = rows.filter(pl.col("sentence").is_in([0, 2]))["prefix_group"]
        assert len(set(shared)) <= 1
        assert not set(shared) & set(rows.filter(pl.col("sentence") == 1)["prefix_group"])


@pytest.mark.full
def test_parts_and_workers_make_the_same_atlas(tmp_path: Path) -> None:
    pairs, whole = some_pairs(40, 1), tmp_path / "whole"
    whole.mkdir()
    one = mine("bart", whole, pairs, removals=2, random=True, token_activations=True)
    for part in (1, 2):
        (tmp_path / f"part{part}").mkdir()
        mine("bart", tmp_path / f"part{part}", pairs, removals=2, random=True, token_activations=True, part=(part, 2))
    model = ms.load_model(build_pair_model("bart"), tokenizer=pair_tokenizer("bart"))
    parts = [tmp_path / f"part{part}" / "atlas" for part in (1, 2)]
    both = tmp_path / "both"
    ms.merge(both, parts, model=model, progress=False)
    for path in sorted(one.rglob("*.parquet")):
        assert pl.read_parquet(path).equals(pl.read_parquet(both / path.relative_to(one))), path


@pytest.mark.full
def test_later_tables_are_made_of_pairs(tmp_path: Path) -> None:
    out = mine("m2m_100", tmp_path, some_pairs(60, 1))
    model = ms.load_model(build_pair_model("m2m_100"), tokenizer=pair_tokenizer("m2m_100"))
    tables = ["width", "importance", "samples", "token_activations", "memorised"]
    ms.extend(out, model, tables, progress=False)
    assert pl.read_parquet(out / "samples/layer-000.parquet").height > 0
    assert pl.read_parquet(out / "memorised.parquet").height == 0  # no document is continued without its source
    ms.fit_lenses(out, model, progress=False)
    assert verify(out) == []
    check = causal_check(model, ms.open_atlas(out), "L1.M3", controls=2, triggers=4)
    assert check.triggers > 0


def test_a_prompt_is_read_with_its_source() -> None:
    hf = build_pair_model("bart")
    model, slow = ms.load_model(hf, tokenizer=pair_tokenizer("bart")), SlowPairs("bart", hf)
    source, text = [5, 6, 7], [9, 8, 17]
    coefficients, logits = slow.read(source, text)
    trace = ms.trace(model, as_words(text), source=as_words(source), memories=5)
    assert [each.prediction[0].token.id for each in trace.positions] == logits.argmax(1).tolist()
    for layer, states in enumerate(trace.places):
        for memory in states[-1].memories:
            assert abs(float(coefficients[layer][-1, memory.memory.memory]) - memory.coefficient) < 1e-4
    given = model.with_source(as_words(source))
    frame = given.coefficients(as_words(text), at="last")
    np.testing.assert_allclose(
        frame.filter(pl.col("layer") == 1)["coefficient"], coefficients[1][-1].numpy(), atol=1e-4
    )
    attribution = ms.attribute(model, as_words(text), source=as_words(source), progress=False)
    first, second = logits[-1].topk(2).values.tolist()
    assert abs(attribution.difference - (first - second)) < 1e-4
    assert abs(attribution.residual_error) < 1e-4
    best = max((each for each in attribution.memories.rows(named=True)), key=lambda row: abs(row["ablation"]))
    layer, number = (int(each) for each in best["memory"][1:].split(".M"))
    column = hf.get_submodule(f"model.decoder.layers.{layer}.fc2")

    def zero(_: Any, taken: Any) -> Any:
        rows = taken[0].clone()
        rows[..., 2 + best["position"], number] = 0
        return (rows,)

    with column.register_forward_pre_hook(zero):
        changed = slow.read(source, text)[1][-1]
    tokens = logits[-1].topk(2).indices.tolist()
    moved = (first - second) - float(changed[tokens[0]] - changed[tokens[1]])
    assert abs(best["ablation"] - moved) < 1e-4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"source_field": None}, "reads a source and writes a text"),
        ({"source_field": "nothing"}, "has no field 'nothing'"),
        ({"ids_field": "to", "text_field": "text"}, "not with token ids"),
    ],
)
def test_pairs_without_a_source(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises((OptionError, CorpusUnreadable), match=said):
        mine("t5", tmp_path, some_pairs(5, 1), **options)
    assert not (tmp_path / "atlas" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"from": " ".join(["w5"] * 40), "to": "w6"}, "has 42 tokens, but the model reads at most 32"),
        ({"from": "w5", "to": " ".join(["w6"] * 40)}, "document 0 has 40 tokens"),
        ({"from": "", "to": "w6"}, "field 'from' is empty"),
        ({"from": None, "to": "w6"}, "field 'from' is empty"),
        ({"from": "w5\x1dw6", "to": "w6"}, "U\\+001D"),
    ],
)
def test_a_source_that_cannot_be_read(row: dict[str, Any], said: str, tmp_path: Path) -> None:
    model = ms.load_model(build_pair_model("bart"), tokenizer=pair_tokenizer("bart"))
    text = tmp_path / "pairs.jsonl"
    text.write_text(json.dumps(row) + "\n")
    with pytest.raises(CorpusUnreadable, match=said):
        ms.mine(model, text, out=tmp_path / "atlas", source_field="from", text_field="to", progress=False)
    assert not (tmp_path / "atlas" / "manifest.json").exists()


def test_a_source_for_a_decoder_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = write_pairs(tmp_path / "pairs.jsonl", some_pairs(3, 1))
    where = ["--source-field", "from", "--text-field", "to", "--out", str(tmp_path / "atlas")]
    assert main(["mine", "builtin:pydocs", str(text), *where]) == 2
    assert "--source-field is of encoder-decoders" in capsys.readouterr().err.splitlines()[-1]
    assert main(["trace", "builtin:pydocs", "Return", "--source", "x"]) == 2
    assert "reads no source" in capsys.readouterr().err.splitlines()[-1]


def test_a_prompt_without_a_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_pair_model("t5").save_pretrained(tmp_path)
    pair_tokenizer("t5").save_pretrained(tmp_path)
    for verb in ("trace", "attribute"):
        assert main([verb, str(tmp_path), "w5 w6"]) == 2
        assert "give the source, too (--source TEXT" in capsys.readouterr().err.splitlines()[-1]
    (tmp_path / "secrets.txt").write_text("w5 w6 w7\n")
    assert main(["audit", str(tmp_path), "--secrets", str(tmp_path / "secrets.txt")]) == 2
    assert "writes its text of a source" in capsys.readouterr().err.splitlines()[-1]
    assert main(["trace", str(tmp_path), "w5 w6", "--source", "w7 w8 w9", "--generate", "2"]) == 0
    assert "Continued" in capsys.readouterr().out


def test_two_models_differ_on_a_pair() -> None:
    first = ms.load_model(build_pair_model("bart"), tokenizer=pair_tokenizer("bart"))
    changed = build_pair_model("bart")
    with torch.no_grad():
        changed.get_submodule("model.decoder.layers.1.fc2").weight[:, 7] *= -3
    second = ms.load_model(changed, tokenizer=pair_tokenizer("bart"))
    source, text = [5, 6, 7], [9, 8, 17]
    before = SlowPairs("bart", build_pair_model("bart")).read(source, text)[1][-1]
    after = SlowPairs("bart", changed).read(source, text)[1][-1]
    found = ms.diff(
        first, as_words(text), other=second, source=as_words(source), target=" w5", against=" w6", progress=False
    )
    assert abs(found.first - float(before[5] - before[6])) < 1e-4
    assert abs(found.second - float(after[5] - after[6])) < 1e-4
    assert abs(found.parts["change"].sum() - (found.second - found.first)) < 1e-3
    one = ms.diff(first, "w9 w8", other_prompt="w9 w4", source="w5 w6", target=" w5", against=" w6", progress=False)
    assert one.first != one.second


def test_files_of_prompts_hold_their_sources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is found over a file is the mean of what each of its prompts gives with its own source."""
    first, changed = build_pair_model("bart"), build_pair_model("bart")
    with torch.no_grad():
        changed.get_submodule("model.decoder.layers.1.fc2").weight[:, 7] *= -3
    one, second = (ms.load_model(each, tokenizer=pair_tokenizer("bart")) for each in (first, changed))
    rows = [
        {"prompt": "w9 w8 w17", "source": source, "for": " w5", "against": " w6"}
        for source in ("w5 w6 w7", "w20 w4", "w11 w12")
    ]
    asked: list[dict[str, Any]] = [
        {"target": row["for"], "against": row["against"], "source": row["source"], "progress": False} for row in rows
    ]
    singles = [ms.attribute(one, "w9 w8 w17", by="attribution", top=999, singles=0, edges=0, **each) for each in asked]
    whole = attribute_prompts(one, rows, top=999, progress=False)
    assert (whole.prompts, whole.refused) == (3, ())
    check_means(whole.memories, [each.memories for each in singles], "attribution")
    differences = [ms.diff(one, "w9 w8 w17", other=second, both=True, top=999, **each) for each in asked]
    over = diff_prompts(one, rows, other=second, both=True, top=999, progress=False)
    assert over.prompts == 3
    check_means(over.memories, [each.memories for each in differences], "change")
    first.save_pretrained(tmp_path / "model")
    pair_tokenizer("bart").save_pretrained(tmp_path / "model")
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"prompt": "w9"}]))
    assert main(["attribute", str(tmp_path / "model"), "--prompts", str(file)]) == 0
    assert "3 prompts, 1 refused" in capsys.readouterr().out
    file.write_text('{"prompt": "w9 w8"}\n')
    assert main(["attribute", str(tmp_path / "model"), "--prompts", str(file)]) == 2
    assert "give the source, too" in capsys.readouterr().err.splitlines()[-1]


def check_means(found: pl.DataFrame, singles: list[pl.DataFrame], column: str) -> None:
    """Of each memory, summed over a prompt's positions."""
    sums = pl.concat([each.group_by("memory").agg(pl.col(column).sum()) for each in singles])
    means = dict(sums.group_by("memory").agg(pl.col(column).sum() / len(singles)).iter_rows())
    assert found.height > 10
    for memory, mean in found.select("memory", column).iter_rows():
        assert abs(means[memory] - mean) < 1e-5
