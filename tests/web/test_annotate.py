"""Annotating over HTTP: campaigns, invitations, blindness, judgements that append, and what is refused."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from mnemoscope.annotate.campaigns.import_export import rows as stored
from mnemoscope.annotations import open_store
from mnemoscope.atlas import open_atlas
from mnemoscope.web.middleware.security import BODY
from web.judging import GOOD, JSON, LOCAL, Reader, codes, host, invited, served
from web.served import patient

TOKEN = "an-access-token-of-this-test"
ABROAD = "http://example.test"


@pytest.fixture
def boss(atlas: Path) -> Reader:
    """The host's browser, with a campaign begun."""
    return host(served(atlas))


@pytest.fixture
def ada(boss: Reader) -> Reader:
    """The browser of an annotator whom the host invited."""
    return invited(boss.web.app, boss, "Ada")  # type: ignore[arg-type]


def rows(atlas: Path) -> list[dict[str, Any]]:
    """Every row that anybody ever stored."""
    with open_store(open_atlas(atlas)) as store:
        return stored(store)


def save(reader: Reader, code: str, *, status: int = 200, **changes: Any) -> Any:
    return reader.post(f"/annotate/items/{code}/save", {**GOOD, **changes}, status=status)


def finish_all(reader: Reader) -> None:
    for code in codes(reader):
        save(reader, code)
        reader.post(f"/annotate/items/{code}/finish")
    for code in codes(reader, "case"):
        reader.post(f"/annotate/items/{code}/judge", {"verdict": "distant"})


def test_looking_makes_no_file(atlas: Path) -> None:
    reader = host(served(atlas), begin=False)
    assert "Begin a campaign" in reader.page("/annotate")
    assert reader.json("/annotate") == {"campaign": None, "people": []}
    for path in ("/annotate/results", "/annotate/export.csv"):
        assert "Nobody has judged anything yet" in reader.page(path, status=404)
    assert "Annotate it" in reader.page("/L0.M0")
    assert not (atlas / "annotations.sqlite").exists()


def test_no_two_parts_of_a_page_have_one_id(atlas: Path) -> None:
    """A script finds the dialog of keys by its id."""
    app = served(atlas)
    boss = host(app, begin=False)
    pages = [boss.page("/annotate")]
    boss.post("/annotate/campaign", {"keys_per_layer": 3})
    pages += [boss.page("/annotate"), boss.page("/L0.M0/annotate"), boss.page("/annotate/results")]
    ada = invited(app, boss, "Ada")
    pages += [ada.page("/annotate/work"), ada.page(f"/annotate/items/{codes(ada)[0]}")]
    for page in pages:
        ids = re.findall(r'\sid="([^"]+)"', page)
        assert "keys" in ids
        assert sorted(ids) == sorted(set(ids))


def test_one_person_alone_annotates_five_keys(atlas: Path) -> None:
    reader = host(served(atlas), begin=False)
    assert "Annotate five keys now" in reader.page("/annotate")
    sent = reader.sent("/annotate/alone", {"name": "Ada"})
    assert (sent.status_code, sent.headers["location"][:16]) == (303, "/annotate/items/")
    page = reader.page(sent.headers["location"])
    assert '<details class="guide" open' in page
    assert "A worked item" in page
    assert [place["kind"] for place in reader.json("/annotate/work")["items"]] == ["key"] * 6
    finish_all(reader)
    reader.post("/annotate/hand-in")
    found = reader.json("/annotate/results")
    assert [(one["author"], one["keys"], one["controls"]) for one in found["authors"]] == [("Ada", 5, 1)]
    again = host(reader.web.app, begin=False)
    assert "Annotate five keys now" not in again.page("/annotate")


@pytest.mark.full
def test_a_campaign_from_the_first_form_to_the_results(boss: Reader, ada: Reader) -> None:
    for reader in (ada, invited(boss.web.app, boss, "Ben")):
        finish_all(reader)
        assert reader.json("/annotate/work")["progress"]["complete"]
        reader.post("/annotate/hand-in")
    assert boss.page("/annotate").count("handed in") >= 2
    found = boss.json("/annotate/results")
    alarm = next(one for one in found["controls"] if one["name"] == "controls_with_pattern")
    assert (alarm["value"], alarm["count"]) == (1.0, 10), "both saw patterns in all five controls"
    assert [(one["author"], one["keys"], one["controls"]) for one in found["authors"]] == [("Ada", 6, 5), ("Ben", 6, 5)]
    page = boss.page("/annotate/results")
    assert "<svg" in page
    assert "Krippendorff" in page
    assert "style=" not in page


def test_an_item_says_neither_which_memory_it_is_nor_whether_it_is_a_control(ada: Reader) -> None:
    shapes = set()
    for code in codes(ada):
        assert re.fullmatch(r"[0-9a-f]{20}", code)
        page, data = ada.page(f"/annotate/items/{code}"), ada.json(f"/annotate/items/{code}")
        assert not re.search(r"L\d+\.M\d+|memory [0-9]|layer [0-9]|control\b", page, re.IGNORECASE)
        assert data["memory"] is None
        shapes.add((frozenset(data), frozenset(re.findall(r'(?:class|id|name|data-[a-z]+)="[^"]*"', page)) and True))
        assert not {"layer", "control", "rank", "sampled"} & set(json.dumps(data).replace('"', " ").split())
    assert len(shapes) == 1
    assert [place["kind"] for place in ada.json("/annotate/work")["items"]] == ["key"] * 11 + ["case"] * 4


@pytest.mark.full
def test_two_at_once_see_only_their_own_until_they_hand_in(boss: Reader, ada: Reader) -> None:
    ben, code = invited(boss.web.app, boss, "Ben"), codes(ada)[0]
    save(ada, code, description="a word of Ada's")
    save(ben, code, description="a word of Ben's")
    assert [one["description"] for one in ada.json(f"/annotate/items/{code}")["patterns"]] == ["a word of Ada's"]
    finish_all(ben)
    ben.post("/annotate/hand-in")
    for path in (f"/annotate/items/{code}", f"/annotate/items/{code}.json", "/annotate/work"):
        assert "Ben" not in ada.page(path), path
    for path in ("/annotate/results", "/annotate/results.json", "/annotate/export.jsonl"):
        assert "judges as Ada" in ada.page(path, status=403)
    assert ada.web.get("/annotate").headers["location"] == "/annotate/work"
    for name in ("L0.M0", "L1.M1"):
        assert ada.json(f"/{name}")["people"] == []
    finish_all(ada)
    assert "Hand it in" in ada.page("/annotate/work")
    ada.post("/annotate/hand-in")
    page = ada.page(f"/annotate/items/{code}")
    assert "What others said" in page
    assert "Ben" in page
    assert "handed in" in save(ada, code, status=409)["message"]


@pytest.mark.full
def test_after_all_have_handed_in_memories_show_what_people_said(boss: Reader, ada: Reader) -> None:
    finish_all(ada)
    names = [f"L{layer}.M{memory}" for layer in (0, 1) for memory in range(5)]
    assert not any(boss.json(f"/{name}")["people"] for name in names)
    search = "/search.json?q=alike&in=annotations"
    assert patient(boss.web, search).json()["total"] == 0, "a search tells no more than the pages"
    ada.post("/annotate/hand-in")
    assert patient(boss.web, search).json()["total"] == 6
    told = [one for name in names for one in boss.json(f"/{name}")["people"]]
    ranks = {(0, 1, 4), (0, 2, 5)}
    assert len(told) == 6
    assert {(one["author"], one["campaign"], tuple(one["triggers"]) in ranks) for one in told} == {("Ada", True, True)}


def test_forms_work_without_script(ada: Reader, atlas: Path) -> None:
    code, following = codes(ada)[:2]
    place = f"/annotate/items/{code}"
    assert 'method="post"' in ada.page(place)
    answer = ada.sent(f"{place}/save", {**GOOD, "pattern": "", "key": "form-0001"})
    assert (answer.status_code, answer.headers["location"]) == (303, f"{place}?pattern=0")
    assert ada.page(f"{place}?pattern=0").count(" checked>") == 4
    # What is wrong stands on the page, with what was typed.
    answer = ada.sent(f"{place}/save", {"kind": "semantic", "description": "two only", "marks": [7, 8], "pattern": ""})
    assert answer.status_code == 409
    assert "2 prefixes are marked; a pattern is in at least 3." in answer.text
    assert "two only" in answer.text
    assert answer.text.count(" checked>") == 3
    # "Finished" stores what the form still holds.
    last = {"kind": "semantic", "description": "three", "marks": [7, 8, 9], "pattern": "", "key": "form-0002"}
    answer = ada.sent(f"{place}/finish", last)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/annotate/items/{following}")
    data = ada.json(place)
    assert data["finished"]
    assert [one["description"] for one in data["patterns"]] == ["ends alike", "three"]
    assert "Take it up again" in ada.page(place)
    assert ada.sent(f"{place}/reopen").headers["location"] == place
    stored = {"kind": "semantic", "description": "three", "marks": [9, 8, 7], "pattern": "1"}
    ada.sent(f"{place}/finish", stored)
    assert len([one for one in rows(atlas) if one["event"] == "judgement"]) == 2, "nothing new, so nothing stored"
    assert ada.sent(f"/annotate/items/{following}/none", {"key": "form-0003"}).status_code == 303
    assert "You found no pattern here" in ada.page(f"/annotate/items/{following}")


def test_a_post_without_the_form_s_token_is_refused(boss: Reader, ada: Reader, atlas: Path) -> None:
    code = codes(ada)[0]
    for path in (f"items/{code}/save", f"items/{code}/none", f"items/{code}/undo", "hand-in", "leave"):
        assert ada.web.post(f"/annotate/{path}", data=GOOD, headers=JSON).status_code == 403, path
    for path in ("campaign", "invite", "renew", "withdraw", "name"):
        assert boss.web.post(f"/annotate/{path}", data={"name": "Eve"}, headers=JSON).status_code == 403, path
    form, foreign = {"name": "Eve", "csrf": boss.csrf}, JSON | {"origin": "http://evil.example"}
    assert boss.web.post("/annotate/invite", data=form, headers=foreign).status_code == 403
    assert ([one["name"] for one in boss.json("/annotate")["people"]], rows(atlas)) == (["Ada"], [])


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({"marks": [0, 1]}, 409, "2 prefixes are marked"),
        ({"marks": ["x"]}, 400, "Marks"),
        ({"pattern": "-1"}, 400, "Pattern"),
        pytest.param({"description": "x" * (BODY + 1)}, 413, "larger", id="too large"),
    ],
)
def test_judgements_that_are_refused(ada: Reader, atlas: Path, changes: dict[str, Any], status: int, said: str) -> None:
    answer = save(ada, codes(ada)[0], status=status, **changes)
    assert said in answer["message"]
    assert "\n" not in answer["message"]
    assert rows(atlas) == []


def test_hostile_words_are_shown_and_never_run(boss: Reader) -> None:
    hostile = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
    page = boss.web.post("/annotate/invite", data={"name": hostile[:60], "csrf": boss.csrf}).text
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    boss.page("/annotate")
    boss.post("/annotate/name", {"name": "Bo<b>ss", "memory": "L0.M0"})
    code = boss.json("/L0.M0/annotate")["code"]
    save(boss, code, description=hostile)
    for path in ("/L0.M0/annotate", "/L0.M0", "/annotate"):
        text = boss.page(path)
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert "&lt;script&gt;" in text
    assert boss.json("/L0.M0")["people"][0]["description"] == hostile


def test_a_memory_is_annotated_from_its_page(atlas: Path) -> None:
    app = served(atlas)
    boss = host(app, begin=False)
    page = boss.page("/L0.M1")
    assert 'href="/L0.M1/annotate"' in page
    assert "Under which name" in boss.page("/L0.M1/annotate")
    answer = boss.sent("/annotate/name", {"name": "Grace", "memory": "L0.M1"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/L0.M1/annotate")
    assert "As Grace" in boss.page("/L0.M1/annotate")
    code = boss.json("/L0.M1/annotate")["code"]
    answer = boss.sent(f"/annotate/items/{code}/save", {**GOOD, "pattern": "", "key": "free-0001"})
    assert answer.headers["location"] == "/L0.M1/annotate?pattern=0"
    # Ranks 0 and 1 of this memory have the same prefix, which is shown once.
    said = {"author": "Grace", "kind": "shallow", "description": "ends alike", "triggers": [0, 2, 5]}
    about = dict.fromkeys(("model", "campaign"), False)
    assert boss.json("/L0.M1")["people"] == [said | about]
    assert "ends alike" in boss.page("/L0.M1")
    boss.post(f"/annotate/items/{code}/undo")
    assert boss.json("/L0.M1")["people"] == []
    assert "ends alike" not in boss.page("/L0.M1")
    # Another browser of the same host takes the name up again; that of an annotator cannot be taken.
    other = Reader(app)
    other.page("/L0.M1/annotate")
    assert other.post("/annotate/name", {"name": "grace"})["name"] == "Grace"
    invited(app, host(app), "Ada")
    other.page("/annotate")
    assert "already" in other.post("/annotate/name", {"name": "Ada"}, status=409)["message"]
    for name, status in (("L9.M0", 404), ("Lx", 404), ("nothing", 404)):
        boss.page(f"/{name}/annotate", status=status)


def test_looking_at_a_memory_to_judge_it_stores_nothing(atlas: Path) -> None:
    boss = host(served(atlas), begin=False)
    boss.post("/annotate/name", {"name": "Grace"})

    def items() -> int:
        with open_store(open_atlas(atlas)) as store, store.database.reading() as connection:
            return int(connection.execute("SELECT count(*) FROM items").fetchone()[0])

    for _ in range(2):
        shown = boss.json("/L0.M1/annotate")
        boss.page("/L0.M1/annotate")
    assert (boss.web.get("/annotate/items/L0.M1").headers["location"], items()) == ("/L0.M1/annotate", 0)
    assert (shown["code"], len(shown["prefixes"]) > 3, shown["patterns"]) == ("L0.M1", True, [])
    save(boss, "L0.M1")
    assert items() == 1
    again = boss.json("/L0.M1/annotate")
    # Browsers keep drafts under the code, which therefore stays.
    assert (again["code"], again["prefixes"]) == ("L0.M1", shown["prefixes"])
    assert [one["description"] for one in again["patterns"]] == ["ends alike"]
    wrong = boss.post("/annotate/items/L0.M1/save", {**GOOD, "marks": [0]}, status=409)
    assert "1 prefix" in wrong["message"] or "1 prefixes" in wrong["message"]
    assert 'data-code="L0.M1"' in boss.sent("/annotate/items/L0.M1/save", {**GOOD, "marks": [0], "pattern": ""}).text
    boss.post("/annotate/items/L0.M1/undo")
    boss.post("/annotate/items/L9.M1/save", GOOD, status=404)
    assert items() == 1


def test_an_invitation_does_not_open_memories_outside_the_campaign(atlas: Path) -> None:
    app = served(atlas, host="0.0.0.0", token=TOKEN)
    boss = host(app, base=ABROAD, path=f"/annotate?token={TOKEN}")
    ada = invited(app, boss, "Ada", base=ABROAD)
    save(ada, "L0.M1", status=404)
    assert ada.page("/annotate/items/L0.M1", status=303) == ""


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_s_link_asks_before_the_browser_is_an_annotator_s(boss: Reader, site: str) -> None:
    link = boss.post("/annotate/invite", {"name": "Eve <b>"}, status=201)["link"]
    there = {"sec-fetch-site": site, "sec-fetch-dest": "document", "sec-fetch-mode": "navigate"}
    page = boss.web.get(link, headers=there)
    assert page.status_code == 200
    assert "mnemoscope_judge" not in page.headers.get("set-cookie", "")
    assert "Judge as Eve &lt;b&gt;" in page.text
    assert page.headers["cache-control"] == "no-store"
    assert boss.json("/annotate")["people"], "the browser is the host's still"
    found = dict(re.findall(r'name="(csrf|invitation)" value="([\w-]+)"', page.text))
    assert boss.web.post("/annotate/join", data={"invitation": found["invitation"]}).status_code == 403
    answer = boss.web.post("/annotate/join", data=found, headers={"sec-fetch-site": "same-origin"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/annotate/work")
    assert "Eve" in boss.page("/annotate/work")
    assert boss.web.post("/annotate/join", data={**found, "invitation": "guessed"}).status_code == 401
    # Typed, kept as a bookmark, or opened from a mail program: nothing is asked.
    typed = Reader(boss.web.app).web.get(link, headers={"sec-fetch-site": "none", "sec-fetch-dest": "document"})
    assert (typed.status_code, "mnemoscope_judge" in typed.headers["set-cookie"]) == (303, True)


def test_with_an_access_token_an_invitation_opens_the_annotator_s_pages_alone(atlas: Path) -> None:
    app = served(atlas, host="0.0.0.0", token=TOKEN)
    boss = host(app, base=ABROAD, path=f"/annotate?token={TOKEN}", begin=False)
    boss.web.get(f"/annotate?token={TOKEN}")
    boss.page("/annotate")
    boss.post("/annotate/campaign", {"keys_per_layer": 3})
    ada = invited(app, boss, "Ada", base=ABROAD)
    code = codes(ada)[0]
    save(ada, code)
    page = ada.page(f"/annotate/items/{code}")
    assert ada.web.get(re.findall(r'href="(/static/[^"]+css)"', page)[0]).status_code == 200
    for path in ("/", "/L0.M0", "/L0.M0.json", "/L0.M0/annotate", "/openapi.json", "/search?q=x"):
        assert ada.web.get(path).status_code == 401, path
    for path in ("/annotate/results", "/annotate/export.csv"):
        assert "Only a host" in ada.page(path, status=403)
    assert ada.web.get("/annotate").headers["location"] == "/annotate/work"
    assert "judged" not in ada.page("/annotate/nothing", status=404), "an error tells nothing of the atlas either"
    stranger = Reader(app, base=ABROAD)
    for path in ("/annotate", "/annotate/work", f"/annotate/items/{code}", "/annotate/join?invitation=guessed"):
        stranger.page(path, status=401)
    ada.post("/annotate/invite", {"name": "Eve"}, status=403)
    boss.post("/annotate/withdraw", {"name": "Ada"})
    ada.page("/annotate/work", status=401)


def test_links_are_shown_once_and_can_be_made_again(boss: Reader) -> None:
    page = boss.web.post("/annotate/invite", data={"name": "Ada", "csrf": boss.csrf}).text
    old = re.findall(r"invitation=([\w-]+)", page)[0]
    assert old not in boss.page("/annotate")
    assert "already" in boss.post("/annotate/invite", {"name": "ada"}, status=409)["message"]
    new = boss.post("/annotate/renew", {"name": "Ada"}, status=201)["link"]
    assert new.startswith(f"{LOCAL}/annotate/join?invitation=")
    reader = Reader(boss.web.app)
    assert reader.web.get(f"/annotate/join?invitation={old}").status_code == 401
    answer = reader.web.get(new)
    assert (answer.status_code, {"HttpOnly", "SameSite=lax"} - set(answer.headers["set-cookie"].split("; "))) == (
        303,
        set(),
    )
    reader.page("/annotate/work")
    assert reader.sent("/annotate/leave").headers["location"] == "/annotate"
    reader.page("/annotate/work", status=401)
    assert "Annotate" in reader.page("/annotate")


def test_export_and_import(untouched: Path, boss: Reader, ada: Reader, tmp_path: Path) -> None:
    save(ada, codes(ada)[0], description='=cmd, "quoted" é')
    shutil.copytree(untouched, tmp_path / "other")
    for ending in ("csv", "jsonl"):
        answer = boss.web.get(f"/annotate/export.{ending}")
        assert answer.status_code == 200
        assert f'filename="judgements.{ending}"' in answer.headers["content-disposition"]
        (tmp_path / "other" / "annotations.sqlite").unlink(missing_ok=True)
        there = host(served(tmp_path / "other"), begin=False)
        for _ in range(2):
            there.post("/annotate/import", files={"file": (f"x.{ending}", answer.content)})
        assert len(rows(tmp_path / "other")) == 1
        assert [one["name"] for one in there.json("/annotate")["people"]] == ["Ada"]
        said = there.post("/annotate/import", files={"file": (f"bad.{ending}", b"\xff\xfe nonsense")}, status=409)
        assert str(tmp_path) not in said["message"]
    assert ".jsonl" in boss.post("/annotate/import", files={"file": ("x.exe", b"")}, status=400)["message"]


def test_a_sheet_of_people_and_models(atlas: Path) -> None:
    boss = host(served(atlas), begin=False)
    sheet = (
        "memory,author,author_kind,pattern,kind,triggers\n"
        "L0.M0,Ada,person,ends alike,shallow,0 1 4\n"
        'L1.M2,A Bot,model,a topic of its own,semantic,"0,1,2,3"\n'
    )
    for _ in range(2):
        boss.post("/annotate/import", files={"file": ("sheet.csv", sheet.encode())})
    bad = sheet.replace("L1.M2", "L1.M99").encode()
    said = boss.post("/annotate/import", files={"file": ("sheet.csv", bad)}, status=409)["message"]
    assert "judgements.csv line 3: L1.M99 is not in" in said
    assert said.endswith("nothing was imported")
    assert [(one["name"], one["role"]) for one in boss.json("/annotate")["people"]] == [
        ("Ada", "annotator"),
        ("A Bot", "model"),
    ]
    assert 'href="/annotate/results"' in boss.page("/annotate")
    assert [one["author"] for one in boss.json("/annotate/results")["authors"]] == ["Ada"]
    assert "by the model A Bot (in the campaign or on a sheet)" in boss.page("/L1.M2")
    assert "by Ada (in the campaign or on a sheet)" in boss.page("/L0.M0")


def test_items_that_are_not_there(ada: Reader) -> None:
    for code in ("0" * 20, "../x", "<b>"):
        ada.page(f"/annotate/items/{code}", status=404)
        assert ada.sent(f"/annotate/items/{code}/save", GOOD).status_code == 404
    case = codes(ada, "case")[0]
    assert "composition" in save(ada, case, status=409)["message"]
