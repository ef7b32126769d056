"""The table `random` against every coefficient of the text, read with plain hooks, and hashes by hand; stops, parts,
workers' states, damage.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl
import pytest

import mnemoscope as ms
from mining.conftest import ENDS, byte_tokenizer, load_bytes, odd_text, stop_at_third, tables_of
from mining.expert_reference import ExpertReference
from mining.reference import Reference
from mining.reference_passes import distinct
from mnemoscope import errors
from mnemoscope.atlas import open_atlas, verify
from mnemoscope.mining import mine
from mnemoscope.mining.text import batch_loader, random_firings
from mnemoscope.mining.text.random_firings import DRAWN, choose_share
from mnemoscope.mining.text_pass import TextWork
from mnemoscope.models import load_model
from models.conftest import build
from models.expert_models import build_mixture

TABLE, SEED = "random", 3
OPTIONS: dict[str, Any] = {"split": "line", "triggers": 1, "batch_tokens": 90, "seed": SEED}
OPTIONS |= dict.fromkeys(("removals", "neighbours", "prefixes"), 0)


def hash_of(sentence: int, position: int, seed: int = SEED) -> int:
    def mix(number: int) -> int:
        number = (number + 0x9E3779B97F4A7C15) % 2**64
        number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        number = (number ^ number >> 27) * 0x94D049BB133111EB % 2**64
        return number ^ number >> 31

    return mix((sentence * 2**24 + position) ^ mix(seed))


class Case:
    """A tiny model, a text of which it has few triggers, and the text's coefficients."""

    def __init__(self, name: str, folder: Path, *, begins: bool = True) -> None:
        hf = build_mixture(name) if name == "mixtral" else build(name)
        tokenizer, raw = byte_tokenizer(**(ENDS if begins else {})), odd_text(120)
        self.hf: Any = hf
        self.model, self.folder, self.text = load_model(hf, tokenizer=tokenizer), folder, folder / "text.txt"
        self.text.write_text(raw)
        beginning = self.model.beginning.token
        sentences = distinct(raw, tokenizer, beginning)
        self.first = 0 if begins else 1
        kind = partial(ExpertReference, hf, name) if name == "mixtral" else partial(Reference, hf)
        self.reference: Any = kind(sentences, beginning=beginning)

    def mine(self, name: str, **more: Any) -> Path:
        return mine(self.model, self.text, out=self.folder / name, **OPTIONS, **more).path

    def expected(self, layer: int, sign: int, memory: int, *, one_in: int = 1) -> list[tuple[int, int, int, float]]:
        """Hash, sentence, position and coefficient of every firing looked at, by hash."""
        found = []
        for sentence, rows in self.reference.coefficients[layer].items():
            for position in range(self.first, len(rows)):
                mixed = hash_of(sentence, position)
                if sign * rows[position, memory] > 0 and mixed < 2**64 // one_in:
                    found.append((mixed, sentence, position, float(rows[position, memory])))
        return sorted(found)

    def check(self, atlas: Path, *, one_in: int = 1) -> int:
        opened, firings = open_atlas(atlas), 0
        for layer in opened.layers:
            table = opened.table(TABLE, layer=layer)
            asked = [(memory, sign) for memory in range(opened.memories(layer)) for sign in (1, -1)]
            rows = {key: own.to_dicts() for key, own in table.group_by("memory", "sign", maintain_order=True)}
            assert [key for key in asked if key in rows] == list(rows)
            for memory, sign in asked:
                expected, own = self.expected(layer, sign, memory, one_in=one_in), rows.get((memory, sign), [])
                firings += len(expected)
                assert [(row["sentence"], row["position"]) for row in own] == [one[1:3] for one in expected[:DRAWN]]
                coefficients = [one[3] for one in expected[:DRAWN]]
                assert [row["coefficient"] for row in own] == pytest.approx(coefficients, rel=1e-3, abs=1e-6)
                assert [row["rank"] for row in own] == list(range(len(own)))
                assert {row["kept_firings"] for row in own} == ({len(expected)} if own else set())
                for row in own:
                    tokens, at = [*self.reference.sentences[row["sentence"]].tokens, None], row["position"]
                    assert [row["token"], row["next_token"]] == tokens[at : at + 2]
        assert verify(atlas) == []
        return firings


@pytest.fixture(scope="module", autouse=True)
def few_sentences_are_stored() -> Iterator[None]:
    """Else the background's sentences are all that the small text has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_loader, "BACKGROUND", 10)
        yield


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Case:
    case = Case("llama", tmp_path_factory.mktemp("gated"))
    case.mine("atlas", random=True)
    return case


def test_the_firings_with_the_smallest_hashes(gated: Case) -> None:
    assert gated.check(gated.folder / "atlas") > 10_000
    opened = open_atlas(gated.folder / "atlas")
    assert opened.manifest["plan"][TABLE] is True
    assert not (gated.folder / "atlas/work").exists()
    lacking = opened.table("random_sentences")
    assert len(lacking) > 10
    assert not set(lacking["sentence"]) & set(opened.table("sentences")["sentence"])


@pytest.mark.parametrize(("name", "begins"), [("gpt2-relu", True), ("gpt2", False), ("mixtral", True)])
def test_other_families(name: str, begins: bool, tmp_path: Path) -> None:
    case = Case(name, tmp_path, begins=begins)
    assert case.check(case.mine("atlas", random=True)) > 1_000


def test_of_a_long_text_only_low_hashes_are_looked_at(gated: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [*map(choose_share, (0, 2**20, 2**21 - 1, 2**21, 2**22 - 1, 10**9))] == [1, 1, 1, 2, 2, 512]
    monkeypatch.setattr(random_firings, "POSITIONS", 500)
    positions = sum(map(len, gated.reference.coefficients[0].values()))
    assert 2_000 <= positions < 4_000
    firings = gated.check(gated.mine("long", random=True), one_in=4)
    assert firings == pytest.approx(positions * 2 * 24 / 4, rel=0.1)  # of either sign almost all


def test_added_later_it_is_the_same(gated: Case) -> None:
    atlas = gated.mine("later")
    with pytest.raises(errors.AtlasUnfinished, match=r"mnemoscope extend .* random`"):
        open_atlas(atlas)["L0.M0"].random()
    before = tables_of(atlas)
    assert ms.extend(atlas, gated.model, [TABLE]).made == (TABLE,)
    assert ms.extend(atlas, gated.model, [TABLE]).kept == (TABLE,)
    gated.check(atlas)
    one, other = open_atlas(gated.folder / "atlas"), open_atlas(atlas)
    assert one.table("random_sentences").equals(other.table("random_sentences"))
    assert all(one.table(TABLE, layer=layer).equals(other.table(TABLE, layer=layer)) for layer in one.layers)
    assert {name: tables_of(atlas)[name] for name in before} == before
    assert not (atlas / "work").exists()
    assert TABLE not in ms.extend(gated.mine("all"), gated.model).made


def test_stopped_and_gone_on_with_gives_the_same_bytes(gated: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = stop_at_third(monkeypatch, TextWork, step="count")
    with pytest.raises(errors.Interrupted):
        gated.mine("stopped", random=True, checkpoint_every=0)
    assert tables_of(gated.mine("stopped", random=True)) == tables_of(gated.folder / "atlas")
    numbers = [one for one in taken if one is not None]
    assert len(set(numbers)) == len(numbers) > 5


def test_extending_is_stopped_and_gone_on_with(gated: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    atlas = gated.mine("stopped-extension")
    taken = stop_at_third(monkeypatch, TextWork, step="count")
    with pytest.raises(errors.Interrupted):
        ms.extend(atlas, gated.model, [TABLE], checkpoint_every=0)
    assert (atlas / "work/text").is_dir()
    assert not open_atlas(atlas).has(TABLE)
    ms.extend(atlas, gated.model, [TABLE])
    gated.check(atlas)
    assert not (atlas / "work").exists()
    numbers = [one for one in taken if one is not None]
    assert len(set(numbers)) == len(numbers) > 5


def test_a_text_that_has_moved_is_named(gated: Case) -> None:
    """The first text is the right one plus a line; the second is the text itself, elsewhere."""
    text, other, there = (gated.folder / name for name in ("first.txt", "other.txt", "there.txt"))
    raw = gated.text.read_text()
    text.write_text(raw)
    other.write_text(raw + "\none more line\n")
    atlas = mine(gated.model, text, out=gated.folder / "of-a-moved-text", **OPTIONS)
    text.rename(there)
    with pytest.raises(errors.PlanDiffers, match=r"other\.txt is not the text"):
        ms.extend(atlas, gated.model, [TABLE], text=other)
    with pytest.raises(errors.OptionError, match="only the table random reads the text again"):
        ms.extend(atlas, gated.model, ["roles"], text=there)
    assert not atlas.has(TABLE)
    assert ms.extend(atlas, gated.model, [TABLE], text=there).made == (TABLE,)
    whole = open_atlas(gated.folder / "atlas")
    assert all(whole.table(TABLE, layer=layer).equals(atlas.table(TABLE, layer=layer)) for layer in whole.layers)
    assert verify(atlas.path) == []


@pytest.mark.parametrize("experts", [False, True])
def test_a_coefficient_that_is_not_finite_is_refused_as_in_mining(experts: bool, tmp_path: Path) -> None:
    case = Case("mixtral" if experts else "llama", tmp_path)
    atlas = case.mine("atlas")

    calls: list[int] = []

    def spoil(_: Any, __: Any, output: Any) -> Any:
        calls.append(len(output))
        return output * float("nan") if len(calls) > 8 else output  # not yet when the model is compared with itself

    norm, refused = case.hf.model.layers[1].post_attention_layernorm, "layer 1 has NaN or infinite coefficients"
    with norm.register_forward_hook(spoil), pytest.raises(errors.NotFinite, match=refused):
        ms.extend(atlas, case.model, [TABLE])
    assert not open_atlas(atlas).has(TABLE)
    assert ms.extend(atlas, case.model, [TABLE]).made == (TABLE,)
    case.check(atlas)


def test_a_memory_s_frame_has_texts(gated: Case) -> None:
    memory = open_atlas(gated.folder / "atlas")["L1.M3"]
    both = memory.random(sign=None)
    assert len(both) == 64
    assert memory.random().equals(both.filter(pl.col("sign") == 1))
    shown = ("trigger_text", "next_text", "prefix", "text")
    assert set(both.columns) == {*open_atlas(gated.folder / "atlas").table(TABLE, layer=1).columns, *shown}
    for row in both.to_dicts():
        assert row["text"].startswith(row["prefix"])
        assert row["prefix"].endswith(row["trigger_text"])
    assert median(memory.random()["coefficient"]) < memory.triggers()["coefficient"][0]


@pytest.mark.parametrize("experts", [False, True])
def test_special_tokens_are_not_drawn_where_they_are_no_triggers(experts: bool, tmp_path: Path) -> None:
    model = load_bytes(build_mixture("mixtral") if experts else build("llama", bos_token_id=0, eos_token_id=0))
    text = tmp_path / "a.jsonl"
    text.write_text("".join(json.dumps({"ids": [5 + k, 0, 7 + 3 * k, 9, 0, 11 + k]}) + "\n" for k in range(20)))
    given: dict[str, Any] = {**OPTIONS, "ids_field": "ids", "validation": text, "random": True}
    every, own = (
        open_atlas(mine(model, text, out=tmp_path / f"{skip}", skip_special=skip, **given)).table(TABLE, layer=0)
        for skip in (False, True)
    )
    assert 0 in every["token"]
    assert 0 not in own["token"]
    columns = ["memory", "sign", "sentence", "position"]
    rest = every.filter(pl.col("token") != 0).join(own, on=columns, how="anti")
    assert len(own) > 100
    assert rest.is_empty()
