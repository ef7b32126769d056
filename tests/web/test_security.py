"""Who is let in, what a browser is told, and what an error shows."""

import re
from pathlib import Path

import pytest
from starlette.datastructures import URL
from starlette.requests import HTTPConnection, Request
from starlette.testclient import TestClient

from mnemoscope.web import app as app_module
from mnemoscope.web.app import create_app
from mnemoscope.web.middleware.security import BODY, check_form, csrf_token, give_csrf
from mnemoscope.web.rendering import json_response
from mnemoscope.web.settings import Settings
from web.served import client

TOKEN = "a-token-of-this-test"


@pytest.mark.parametrize("path", ["/", "/L0.M0", "/L0.M9", "/index.json", "/nothing", "/openapi.json"])
def test_every_answer_forbids_inline_script_and_style(handbuilt: Path, path: str) -> None:
    headers = client(handbuilt).get(path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "same-origin")


@pytest.mark.parametrize("name", ["127.0.0.1:8765", "localhost:1", "LOCALHOST", "[::1]:8765"])
def test_this_machine_is_answered_under_its_own_names(handbuilt: Path, name: str) -> None:
    assert client(handbuilt).get("/", headers={"host": name}).status_code == 200


@pytest.mark.parametrize("name", ["evil.example", "127.0.0.1.evil.example:8765", "192.168.0.7", ""])
def test_a_foreign_name_is_refused(handbuilt: Path, name: str) -> None:
    answer = client(handbuilt).get("/", headers={"host": name})
    assert answer.status_code == 403
    assert "127.0.0.1" in answer.text
    assert "handbuilt" not in answer.text


def abroad(handbuilt: Path) -> TestClient:
    """A reader of a server that others than its own machine can reach."""
    return client(handbuilt, base="http://example.test", host="0.0.0.0", token=TOKEN)


def test_without_the_token_nothing_is_shown(handbuilt: Path) -> None:
    reader = abroad(handbuilt)
    for path in ("/", "/L0.M0", "/index.json", "/openapi.json", "/static/x/style.css", "/?token=wrong", "/?token=%FF"):
        answer = reader.get(path)
        assert answer.status_code == 401, path
        assert "handbuilt" not in answer.text
        assert TOKEN not in answer.text
    assert reader.get("/index.json", headers={"authorization": "Bearer wrong"}).json()["status"] == 401


def old_url(request: Request) -> URL:
    """An address as Starlette 1.0 made it, which believed the Host header whatever stood in it."""
    said, scope = request.headers.get("host", ""), request.scope
    return URL(f"{scope['scheme']}://{said}{scope['path']}?{scope['query_string'].decode('latin-1')}")


@pytest.mark.fast(4)
@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize(
    "said", ["x/annotate/join?", "x/annotate/join#", "x/static/a?", "example.test/annotate/join?", "x\\annotate/join?"]
)
def test_no_host_header_takes_the_place_of_the_token(
    handbuilt: Path, said: str, old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if old:
        monkeypatch.setattr(HTTPConnection, "url", property(old_url))
        # The trick works on whoever asks for the address.
        spoilt = {"type": "http", "scheme": "http", "path": "/index.json", "query_string": b""}
        spoilt |= {"headers": [(b"host", b"x/annotate/join?")]}
        assert Request(spoilt).url.path == "/annotate/join"
    reader = abroad(handbuilt)
    for path in ("/", "/index.json", "/L0.M0.json", "/search.json?q=x", "/openapi.json"):
        answer = reader.get(path, headers={"host": said})
        assert answer.status_code == 401, (path, said)
        assert "handbuilt" not in answer.text
    judging = {"host": said, "cookie": "mnemoscope_judge_8765=" + "x" * 30}
    assert reader.get("/index.json", headers=judging).status_code == 401


@pytest.mark.parametrize("path", ["//evil.example/", "///evil.example", "/%2Fevil.example", "/%5C%5Cevil.example"])
def test_the_way_on_from_the_token_stays_on_this_server(handbuilt: Path, path: str) -> None:
    answer = abroad(handbuilt).get(f"http://example.test{path}?token={TOKEN}")
    assert answer.status_code == 303
    assert re.match(r"/[^/\\]", answer.headers["location"])


def test_the_token_is_shown_once_and_leaves_the_address(handbuilt: Path) -> None:
    reader = abroad(handbuilt)
    first = reader.get(f"/L0.M0?pattern=1&token={TOKEN}")
    assert (first.status_code, first.headers["location"]) == (303, "/L0.M0?pattern=1")
    assert "HttpOnly" in first.headers["set-cookie"]
    assert (reader.get("/L0.M0").status_code, abroad(handbuilt).get("/").status_code) == (200, 401)
    bearer = {"authorization": f"Bearer {TOKEN}"}
    assert abroad(handbuilt).get("/", headers=bearer).status_code == 200


def test_an_invitation_may_enter_without_the_token(handbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "admits", lambda site, request: request.scope["path"] == "/L0.M1")
    reader = abroad(handbuilt)
    assert (reader.get("/L0.M1").status_code, reader.get("/L0.M0").status_code) == (200, 401)


def with_a_form(handbuilt: Path) -> TestClient:
    """A site with one form, made and read as a page of ours would."""
    app = create_app(Settings(handbuilt))
    site = app.state.site

    @app.get("/form/x")
    def form(request: Request):  # type: ignore[no-untyped-def]
        token = csrf_token(site, request)
        answer = json_response({"csrf": token})
        give_csrf(site, answer, token)
        return answer

    @app.post("/form/x")
    async def post(request: Request):  # type: ignore[no-untyped-def]
        await check_form(site, request)
        return json_response({"word": (await request.form()).get("word")})

    @app.get("/form/broken")
    def broken() -> None:
        raise RuntimeError("a secret of the inside")

    return TestClient(app, base_url="http://127.0.0.1:8765", raise_server_exceptions=False)


def test_a_form_needs_the_token_of_its_browser(handbuilt: Path) -> None:
    reader = with_a_form(handbuilt)
    assert reader.post("/form/x", data={"word": "x", "csrf": ""}).status_code == 403
    token = reader.get("/form/x").json()["csrf"]
    assert reader.get("/form/x").json()["csrf"] == token
    assert reader.post("/form/x", data={"word": "x", "csrf": token}).json() == {"word": "x"}
    assert reader.post("/form/x", data={"word": "x"}, headers={"X-CSRF-Token": token}).json() == {"word": "x"}
    other = token[:-1] + ("A" if token[-1] != "A" else "B")
    for fields in ({"word": "x"}, {"word": "x", "csrf": other}, {"csrf": "é"}):
        assert reader.post("/form/x", data=fields).status_code == 403


@pytest.mark.parametrize(
    "headers", [{"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": "http://evil.example"}]
)
def test_a_post_from_another_site_is_refused(handbuilt: Path, headers: dict[str, str]) -> None:
    reader = with_a_form(handbuilt)
    token = reader.get("/form/x").json()["csrf"]
    answer = reader.post("/form/x", data={"csrf": token}, headers=headers)
    assert answer.status_code == 403
    assert "another site" in answer.text


LOADED = ("image", "iframe", "script", "empty", "object", "embed", "style")


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_another_site_s_page_loads_by_itself_is_refused(handbuilt: Path, site: str) -> None:
    reader = client(handbuilt)
    running = ("/trace?prompt=x", "/audit?text=x", "/L0.M0/causal")
    for path in ("/", *running, "/search.json?q=x", "/annotate/join?invitation=x"):
        for kind in LOADED:
            answer = reader.get(path, headers={"sec-fetch-site": site, "sec-fetch-dest": kind})
            assert answer.status_code == 403, (path, kind)
            assert "Another site" in answer.text
        early = {"sec-fetch-site": site, "sec-fetch-dest": "document", "sec-purpose": "prefetch;prerender"}
        assert reader.get(path, headers=early).status_code == 403
    assert reader.head("/", headers={"sec-fetch-site": site, "sec-fetch-dest": "image"}).status_code == 403


def test_links_bookmarks_programs_and_our_own_pages_are_answered(handbuilt: Path) -> None:
    reader = client(handbuilt)
    asked: list[dict[str, str]] = [{"sec-fetch-site": "cross-site", "sec-fetch-dest": "document"}, {}]
    asked += [{"sec-fetch-site": "same-origin", "sec-fetch-dest": kind} for kind in LOADED]
    asked += [{"sec-fetch-site": "none", "sec-fetch-dest": "document", "sec-purpose": "prefetch"}]
    for headers in asked:
        assert reader.get("/L0.M0", headers=headers).status_code == 200, headers


def test_a_path_does_not_command_the_terminal(handbuilt: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = create_app(Settings(handbuilt))

    @app.get("/form/{name}/broken")
    def broken(name: str) -> None:
        raise RuntimeError("inside")

    reader = TestClient(app, base_url="http://127.0.0.1:8765", raise_server_exceptions=False)
    assert reader.get("/form/%1b]0;owned%07/broken").status_code == 500
    (said,) = [one.getMessage() for one in caplog.records if one.name == "mnemoscope.web"]
    assert said == "GET /form/\u241b]0;owned\u2407/broken"


def test_settings_do_not_say_their_secrets(handbuilt: Path) -> None:
    assert TOKEN not in repr(Settings(handbuilt, token=TOKEN))


def test_large_bodies_and_addresses_are_not_read(handbuilt: Path) -> None:
    reader = with_a_form(handbuilt)
    assert reader.post("/form/x", content=b"x" * (BODY + 1)).status_code == 413
    pieces = (b"csrf=" + b"x" * 100_000 for _ in range(20))
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert reader.post("/form/x", content=pieces, headers=form).status_code == 413
    for length in ("9" * 5_000, "²"):
        long = [(b"content-length", length.encode("latin-1"))]
        assert reader.post("/form/x", content=b"x", headers=long).status_code == 413
    assert reader.get("/?q=" + "x" * 20_000).status_code == 414


def test_a_bug_is_a_page_without_a_traceback(handbuilt: Path) -> None:
    answer = with_a_form(handbuilt).get("/form/broken")
    assert answer.status_code == 500
    assert "bug in mnemoscope" in answer.text
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")


def test_what_cannot_be_found_is_one_sentence_as_page_and_as_json(handbuilt: Path) -> None:
    reader = client(handbuilt)
    for path, sentence in (
        ("/L0.M9", "L0.M9 is not in"),
        ("/L7.M0", "L7.M0 is not in"),
        ("/Lx", "does not name a memory"),
        ("/nothing", "There is no page"),
        ("/a/b/c", "There is no page"),
    ):
        page, data = reader.get(path), reader.get(f"{path}.json")
        assert page.status_code == data.status_code == 404, path
        assert data.json()["status"] == 404
        assert sentence in data.json()["message"]
        assert "<h1>404: Not Found</h1>" in page.text
    assert (reader.post("/L0.M0").status_code, reader.head("/L0.M0").status_code) == (405, 200)


def test_files_are_looked_up_by_name(handbuilt: Path) -> None:
    reader = client(handbuilt)
    page = reader.get("/").text
    sheet = page.split('rel="stylesheet" href="')[1].split('"')[0]
    assert reader.get(sheet).headers["content-type"].startswith("text/css")
    for path in ("/static/x/style.css", sheet.replace("style.css", "..%2F..%2Fapp.py"), "/static/../app.py"):
        assert reader.get(path).status_code == 404, path


def test_pages_are_kept_by_browsers_until_the_atlas_changes(handbuilt: Path) -> None:
    reader = client(handbuilt)
    first = reader.get("/L0.M0")
    mark = first.headers["etag"]
    assert reader.get("/L0.M0", headers={"if-none-match": mark}).status_code == 304
    assert reader.get("/L0.M1", headers={"if-none-match": mark}).status_code == 200
    assert reader.get("/L0.M0.json").headers["etag"] != mark
