"""The page of a string: its numbers are those of an audit, it and the trace lead to each other, errors are a line."""

from pathlib import Path
from typing import Any, get_args
from urllib.parse import parse_qs, urlsplit

import pytest
import torch
from starlette.testclient import TestClient

import mnemoscope as ms
from mnemoscope.auditing import AuditedString, audit
from mnemoscope.foundation.formatting import show_text
from mnemoscope.foundation.options.prompt_options import VARIED
from mnemoscope.models import LanguageModel
from mnemoscope.show.pages.model.audit import FEWEST, MOST, NEIGHBOURS, USUAL, AuditAddress, AuditView
from mnemoscope.show.pages.model.trace import PROMPT
from mnemoscope.web import model_answers
from mnemoscope.web.model_worker import ModelWorker
from models.checkpoints import CONTEXT, KINDS, WORDS, args_of, weights_of, write
from support.mined import mined_text
from web.parts import Parts
from web.planted_atlas import SPEC, other_weights
from web.served import client, refused

TEXT = "the old house"  # L1.M0 writes `house` after `the old`
OPTIONS: Any = {"alternatives": USUAL, "neighbours": NEIGHBOURS}


@pytest.fixture(scope="module")
def reader(planted: Path) -> TestClient:
    return client(planted, model=SPEC)


@pytest.fixture(scope="module")
def audited(model: LanguageModel, planted: Path) -> AuditedString:
    return audit(model, [TEXT], **OPTIONS, atlas=ms.open_atlas(planted)).secrets[0]


def page(reader: TestClient, **query: Any) -> Parts:
    answer = reader.get("/audit", params={"text": TEXT, **query})
    assert answer.status_code == 200, answer.text
    return Parts(answer.text)


def words(parts: Parts) -> str:
    return " ".join(parts.text.split())


def data(reader: TestClient, **query: Any) -> Any:
    answer = reader.get("/audit.json", params={"text": TEXT, **query})
    assert answer.status_code == 200, answer.text
    return answer.json()


def minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}")


def test_the_numbers_are_those_of_the_audit(reader: TestClient, audited: AuditedString) -> None:
    found = data(reader)
    assert found["audit"]["secrets"] == [audited.to_dict()]
    assert found["linear_head"] is True
    assert found["limits"] == {"characters": PROMPT, "tokens": 31, "alternatives": MOST}
    shown = words(page(reader))
    own, after = audited, audited.after
    assert own.exposure is not None
    assert minus(f"{own.log_probability:.2f} nats over {own.tokens} tokens") in shown
    assert f"rank {own.rank} of {own.alternatives + 1}" in shown
    assert f"{own.exposure:.1f} bits of at most 6.6" in shown
    assert f"{TEXT} is exposed: rank 1" in shown
    assert f"{show_text(own.prefix)}, continued with the likeliest token each time, does not give the rest" in shown
    assert str(own.memories[0].memory) == "L1.M0"
    cells = "".join(shown.split())
    for one in own.memories:
        assert minus(f"{one.memory}{-one.lost + 0.0:+.2f}{one.direct:+.2f}") in cells
    rows = [
        (f"itsbest{len(after.memories)}", after.log_probability, after.side_effect),
        ("othersasstrongthere", after.control_log_probability, after.control_side_effect),
    ]
    for head, total, beside in rows:
        change = total - own.log_probability + 0.0
        assert minus(f"{head}{total:+.2f}{change:+.2f}{beside + 0.0:+.4f}") in cells
    assert "seen in training” only where what varies was random" in shown


def test_a_string_that_is_like_its_alternatives_is_not_exposed(reader: TestClient) -> None:
    """All are words that the model does not know."""
    assert data(reader, text="xx yy")["audit"]["secrets"][0]["rank"] == 100
    shown = words(page(reader, text="xx yy"))
    assert "xx yy is not exposed: rank 100 of 100" in shown
    assert "0.0 bits of at most 6.6" in shown


@pytest.mark.parametrize(
    ("extractable", "still", "said"),
    [
        (True, True, "then still gives the rest"),
        (True, False, "then no longer gives the rest"),
        (False, True, "then gives the rest"),
        (False, False, "then does not give the rest, as before"),
    ],
)
def test_the_first_half_before_and_after(
    reader: TestClient,
    audited: AuditedString,
    monkeypatch: pytest.MonkeyPatch,
    extractable: bool,
    still: bool,
    said: str,
) -> None:
    """Every pair of the two: what the page says is what the audit found."""
    found = {"model": SPEC, "fingerprint": "", "neighbours": "x", "secrets": [audited.to_dict()]}
    found["secrets"][0]["extractable"] = extractable
    found["secrets"][0]["after"]["extractable"] = still
    monkeypatch.setattr(model_answers, "audit_string", lambda *_: found)
    assert f"Its first half {said}." in words(page(reader))


def test_memories_and_traces_are_links_that_lead_somewhere(reader: TestClient, audited: AuditedString) -> None:
    shown = page(reader)
    ids = {at["id"] for _, at in shown.found if "id" in at}
    for href in dict.fromkeys(shown.links()):
        if href.startswith("#"):
            assert href[1:] in ids
        elif not href.startswith(("/search", "/annotate")):
            assert reader.get(href).status_code == 200, href
    best = str(audited.memories[0].memory)
    way = next(href for href in shown.links(f"/{best}?"))
    assert parse_qs(urlsplit(way).query) == {"prompt": [TEXT]}
    traces = [parse_qs(urlsplit(href).query) for href in shown.links("/trace?")]
    assert {"prompt": [TEXT]} in traces
    assert {"prompt": [TEXT], "set": [f"{best}=0"]} in traces
    assert {"prompt": [TEXT], "set": [f"{one}=0" for one in audited.after.memories]} in traces


def test_the_trace_of_a_string_leads_to_its_audit_and_back(reader: TestClient) -> None:
    trace = Parts(reader.get("/trace", params={"prompt": TEXT, "set": "L1.M4=0"}).text)
    (way,) = trace.links("/audit?")
    assert parse_qs(urlsplit(way).query) == {"text": [TEXT]}
    back = Parts(reader.get(way).text).links("/trace?")[0]
    assert parse_qs(urlsplit(back).query) == {"prompt": [TEXT]}
    # One token cannot be audited.
    assert not Parts(reader.get("/trace", params={"prompt": "the"}).text).links("/audit?")
    assert not Parts(reader.get("/trace", params={"prompt": ""}).text).links("/audit?")


def test_the_python_script_is_the_audit(reader: TestClient, capsys: pytest.CaptureFixture[str]) -> None:
    found = data(reader, vary="digits", alternatives=20)
    exec(found["python"], {})
    own = found["audit"]["secrets"][0]
    printed = capsys.readouterr().out
    assert found["audit"]["neighbours"] in printed
    assert f"log probability {own['log_probability']:.2f} over {own['tokens']} tokens" in printed
    assert "nothing in it varies" in printed


def test_nothing_varies_and_nothing_is_asked(reader: TestClient) -> None:
    shown = words(page(reader, vary="digits"))
    assert f"Nothing in {TEXT} varies, so it has no rank" in shown
    assert data(reader, vary="digits")["audit"]["secrets"][0]["rank"] is None
    assert (reader.get("/audit.json").json()["audit"], reader.get("/audit").status_code) == (None, 200)
    assert reader.get("/audit.json", params={"alternatives": ""}).json()["alternatives"] == USUAL


def test_without_other_text_its_column_is_empty() -> None:
    after = {"memories": ["L1.M0"], "log_probability": -3.0, "extractable": False, "side_effect": None}
    after |= {"control_log_probability": -2.0, "control_side_effect": None}
    look = AuditView({"text": "a b", "log_probability": -2.0, "after": after, "memories": []}, "none")
    assert [(row["beside"], row["change"]) for row in look.together()] == [(None, 0), (None, -1), (None, 0)]


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ({"text": ""}, "the prompt is empty"),
        ({"text": "cat"}, "the string 'cat' is one token"),
        ({"text": "the " * 40}, "cannot be audited: the prompt has 40 tokens, but the model reads at most 31"),
        ({"text": "x" * (PROMPT + 1)}, "at most 2000 characters"),
        ({"alternatives": FEWEST - 1}, "greater than or equal to 19"),
        ({"alternatives": MOST + 1}, "less than or equal to 999"),
        ({"alternatives": "many"}, "valid integer"),
        ({"vary": "x"}, "should be 'all' or 'digits'"),
    ],
)
def test_what_cannot_be_audited_is_one_sentence(reader: TestClient, query: dict[str, Any], sentence: str) -> None:
    refused(reader, "/audit", {"text": TEXT, **query}, said=sentence)


def test_more_tokens_than_the_page_takes(reader: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_answers, "TOKENS", 4)
    refused(reader, "/audit", {"text": "the cat sat on the"}, said="has 5 tokens; the page takes at most 4")


def test_a_form_keeps_what_could_not_be_audited(reader: TestClient) -> None:
    shown = refused(reader, "/audit", {"text": "cat", "alternatives": 50, "vary": "digits"}, said="one token")
    assert "50" in [at.get("value") for tag, at in shown.found if tag == "input" and at.get("name") == "alternatives"]
    assert [at["value"] for tag, at in shown.found if tag == "option" and "selected" in at] == ["digits"]
    area = next(at for tag, at in shown.found if tag == "textarea")
    assert (area["aria-describedby"], area["aria-invalid"]) == ("problem", "true")


def test_scores_that_are_no_numbers_are_told(planted: Path) -> None:
    reader = client(planted, model=SPEC)
    worker = reader.app.state.site.model  # type: ignore[attr-defined]
    with torch.no_grad():
        worker.model.anatomy.head.weight[3] = float("nan")
    worker.model.usage = None  # nobody sees that it was changed
    refused(reader, "/audit", {"text": TEXT}, said="NaN or infinite scores")


def test_another_model_than_the_atlas_s_is_refused(planted: Path, tmp_path: Path) -> None:
    reader = client(planted, model=str(other_weights(tmp_path / "other")), force_model=True)
    assert "is not the model that was mined." in reader.get("/audit").text
    refused(reader, "/audit", {"text": TEXT}, status=409, said="was mined from another model than")
    assert not Parts(reader.get("/trace", params={"prompt": TEXT}).text).links("/audit?")


def test_a_head_that_is_no_matrix_has_no_carriers(tmp_path: Path) -> None:
    kind = next(kind for kind in KINDS.values() if kind.softmax_cutoffs is not None)
    spec = write(tmp_path, args_of(kind), weights_of(kind))
    lines = "".join(" ".join(WORDS[k : k + 5]) + "\n" for k in range(4))
    atlas = mined_text(spec, tmp_path, lines, removals=2, prefixes=5)
    reader, text = client(atlas, model=spec), " ".join(WORDS[:4])
    assert len(text.split()) < CONTEXT
    found = data(reader, text=text)
    assert found["linear_head"] is False
    (own,) = found["audit"]["secrets"]
    assert (own["memories"], own["after"]) == ([], None)
    said = words(page(reader, text=text))
    assert "adaptive softmax, so a memory has no effect of its own on a logit" in said
    assert minus(f"{own['log_probability']:.2f} nats over 4 tokens") in said
    assert "Without the best of them together" not in said
    traced = reader.get("/trace", params={"prompt": text})
    assert traced.status_code == 200
    assert "Who pushed is unknown: the head of" in traced.text
    assert reader.get("/trace.json", params={"prompt": text}).json()["pushed"] is None


def test_an_audit_waits_for_the_model_s_turn_and_ends_when_nobody_waits(planted: Path, model: LanguageModel) -> None:
    left: list[bool] = []

    class Leaving(ModelWorker):  # type: ignore[misc]
        """Answers at once, to a reader who leaves after so many questions whether he is still there."""

        def answer(self, key: Any, make: Any, **_: Any) -> Any:
            return make(self.model, lambda: left.append(True) or len(left) > 3)

    worker = Leaving(model, SPEC)
    with pytest.raises(TimeoutError):
        model_answers.audit_string(worker, ms.open_atlas(planted), "x", TEXT, {"alternatives": USUAL})
    assert len(left) == 4
    again = audit(model, [TEXT], **OPTIONS, atlas=ms.open_atlas(planted))
    assert again == audit(ms.load_model(SPEC), [TEXT], **OPTIONS, atlas=ms.open_atlas(planted))


def test_a_busy_model_is_told_and_an_answer_is_kept(planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = client(planted, model=SPEC)
    worker = reader.app.state.site.model  # type: ignore[attr-defined]
    first = data(reader)
    monkeypatch.setattr(model_answers, "audit", None)  # whoever ran it again would fail
    assert data(reader) == first
    worker.max_queued = 0
    assert data(reader) == first
    assert "others wait already" in reader.get("/audit.json", params={"text": "a dog ran home"}).json()["message"]


def test_the_address_holds_what_is_not_as_usual() -> None:
    assert AuditAddress(text="a b").address() == "/audit?text=a+b"
    other = AuditAddress(text="a", vary="digits", alternatives=20)
    assert other.address() == "/audit?text=a&vary=digits&alternatives=20"
    assert get_args(AuditAddress.model_fields["vary"].annotation) == VARIED
