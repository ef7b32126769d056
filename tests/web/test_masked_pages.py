"""Pages, report and printed lines of a model that reads sentences whole: the sentence with its token marked, the words
of such a model, and the coefficient with the token masked.
"""

import re
from html import unescape
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import mnemoscope as ms
from mnemoscope.cli import main
from mnemoscope.foundation.words import NEXT, SAME
from mnemoscope.questions.answers import load_answers, write_all
from models.masked_models import build_masked, masked_tokenizer
from reports.reading import page_without_figures
from support.mined import mined_text
from web.parts import Parts
from web.served import client, patient, refused

OTHERS_WORDS = re.compile(r"\b(next tokens?|what follows|(came|comes) next|text so far|followed by)\b|\{\w+\}", re.I)
NAMES = re.compile(r"column \w+|over prefixes|prefixes [0-9,]+(?=, random)|prefixes\s+[0-9,]+")
"""Of columns and of an option in the plan."""


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> ms.Atlas:
    numbers = np.random.default_rng(5).integers(5, 60, (40, 6)).tolist()
    text = "".join(" ".join(f"w{number}" for number in row) + "\n" for row in numbers)
    folder = tmp_path_factory.mktemp("atlas")
    build_masked("bert").save_pretrained(folder / "bert")
    masked_tokenizer().save_pretrained(folder / "bert")
    made = mined_text(str(folder / "bert"), folder, text, other=text[:400], removals=5)
    write_all(made)
    return ms.open_atlas(made.path)


@pytest.fixture(scope="module")
def reader(atlas: ms.Atlas) -> TestClient:
    return client(atlas.path)


@pytest.fixture(scope="module")
def firing(atlas: ms.Atlas) -> str:
    """A memory with positive triggers whose own coefficient is known."""
    known = atlas.best_triggers(0, None).drop_nulls("own_coefficient").filter(sign=1)
    return str(atlas.name(0, known["memory"][0]))


def test_a_trigger_is_the_whole_sentence_with_its_token_marked(
    reader: TestClient, atlas: ms.Atlas, firing: str
) -> None:
    rows = atlas[firing].triggers().to_dicts()
    shown = reader.get(f"/{firing}.json").json()["triggers"]
    for one, row in zip(shown, rows, strict=False):
        assert one["next"] == one["token"]
        assert one["before"].split() + one["token"]["text"].split() + one["after"].split() == row["text"].split()
        assert one["own_coefficient"] == row["own_coefficient"]
    page = unescape(reader.get(f"/{firing}").text)
    after = next(one["after"] for one in shown if one["after"])
    assert f'<span class="after">{after}</span>' in page.replace("\N{MIDDLE DOT}", " ")
    assert page.count("with this token masked") == sum(one["own_coefficient"] is not None for one in shown)
    assert "(end of the sentence)" not in page


def test_hits_are_of_the_token_itself(reader: TestClient, atlas: ms.Atlas, firing: str) -> None:
    rows, top = atlas[firing].triggers(), atlas[firing].top_token()
    follows = reader.get(f"/{firing}.json").json()["follows"]
    assert follows["followed"] == (rows["token"][:25] == top).sum()
    assert "Is its top token the one at its triggers?" in reader.get(f"/{firing}").text


def test_every_page_has_the_words_of_such_a_model(reader: TestClient, firing: str) -> None:
    drawn = (f"/questions/{one}" for one in ("value_agreement", "layer_activity"))
    for path in ("/layers", "/layers/0", f"/{firing}", "/questions", *drawn, "/search", "/tokens/9", "/annotate"):
        page = reader.get(path)
        assert page.status_code == 200, path
        text = NAMES.sub("", " ".join(Parts(page.text).text.split()))
        assert not OTHERS_WORDS.search(text), path
        assert not re.search(r"\bprefix(es)?\b", text), path


def test_no_page_asks_it_to_continue(reader: TestClient, atlas: ms.Atlas) -> None:
    with_model = client(atlas.path, model=str(atlas.path.parent / "bert"))
    page = Parts(with_model.get("/trace").text)
    assert page.links("/audit") == []
    assert "/trace" in page.links()
    refused(with_model, "/audit", {}, said="continues no text")


def test_a_search_finds_what_stands_on_either_side(reader: TestClient, atlas: ms.Atlas, firing: str) -> None:
    inner = next(row for row in atlas[firing].triggers().to_dicts() if row["position"] < 5)
    text = inner["text"]
    found: Any = patient(reader, f'/search.json?in=triggers&q="{text}"').json()
    assert [one["sentence"] for one in found["hits"]] == [inner["sentence"]]
    assert re.fullmatch(r"[0-9]+ sentences?, best rank [0-9]+ at position [0-9]", found["hits"][0]["detail"])


def test_it_is_printed_likewise(atlas: ms.Atlas, firing: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(atlas.path), firing]) == 0
    lines, row = capsys.readouterr().out.splitlines(), atlas[firing].triggers().to_dicts()[0]
    header = next(line for line in lines if line.startswith("rank  (coefficient)"))
    assert header.split() == ["rank", "(coefficient)", "count", "sentence", "token", "itself"]
    first = lines[lines.index(header) + 1].replace("\N{MIDDLE DOT}", " ")
    tokens = row["text"].split()
    marked = re.compile(r"\s*".join(re.escape(one) for one in tokens[: row["position"]]) + r"\s*«\s*")
    assert marked.search(first)
    assert " ".join(re.sub("[«»]", " ", first).split()[2 : 2 + len(tokens)]) == row["text"]
    assert row["own_coefficient"] is None or f"{row['own_coefficient']:.3f} with it masked" in first
    assert f"of {atlas.manifest.corpus.counts['mined_tokens']} positions" in "\n".join(lines)


def test_the_report_has_its_words(atlas: ms.Atlas) -> None:
    page = re.sub(r"<noscript>.*?</noscript>", "", page_without_figures(load_answers(atlas)), flags=re.DOTALL)
    page = re.sub(r"<script.*?</script>|<style.*?</style>", "", page, flags=re.DOTALL)
    text = NAMES.sub("", " ".join(Parts(page).text.split()))
    assert not OTHERS_WORDS.search(text)
    assert not re.search(r"\bprefix(es)?\b", text)
    assert SAME["text_read"] in text
    assert NEXT["text_read"] not in text
