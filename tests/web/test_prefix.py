"""Pages behind a proxy that puts them under a path: no link, form, redirect or cookie leaves it."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from mnemoscope.errors import OptionError
from mnemoscope.web.app import create_app
from mnemoscope.web.serving import with_token
from mnemoscope.web.settings import Settings
from web.judging import annotated_atlas

PATH = "/user/me/proxy/8765"
PUBLIC = f"https://lab.example{PATH}"
ADDRESS = re.compile(r'[ :](?:href|src|action|formaction)="([^"]*)"')


class Proxy:
    """Answers under PATH what the server answers below it; `strips` says whether it takes PATH off."""

    def __init__(self, app: ASGIApp, *, strips: bool, told: str | None = None) -> None:
        self._app, self._strips, self._told = app, strips, told

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["path"].startswith(f"{PATH}/"), f"{scope['path']} is another application's"
        path = scope["path"][len(PATH) :] if self._strips else scope["path"]
        told = [] if self._told is None else [(b"x-forwarded-prefix", self._told.encode())]
        await self._app({**scope, "path": path, "headers": [*scope["headers"], *told]}, receive, send)


def behind(handbuilt: Path, *, strips: bool = True, told: str | None = None, **settings: Any) -> TestClient:
    app = create_app(with_token(Settings(handbuilt, **settings)))
    base = "https://lab.example" if "public_url" in settings else "http://127.0.0.1:8765"
    return TestClient(
        Proxy(app, strips=strips, told=told), base_url=base, raise_server_exceptions=False, follow_redirects=False
    )


def crawl(reader: TestClient, start: str) -> dict[str, str]:
    """Every page that can be reached, by its address; no address of any leaves PATH."""
    found: dict[str, str] = {}
    waiting = [start]
    while waiting and len(found) < 90:
        address = waiting.pop(0)
        if address in found:
            continue
        answer = reader.get(address)
        if answer.is_redirect:
            to = answer.headers["location"]
            assert to.startswith(f"{PATH}/"), (address, to)
            found[address] = ""
            waiting.append(to)
            continue
        assert answer.status_code in (200, 401, 404, 405, 503), (address, answer.status_code)
        assert len(answer.content) == int(answer.headers["content-length"]), address
        found[address] = answer.text
        if not answer.headers["content-type"].startswith("text/html"):
            continue
        for link in ADDRESS.findall(answer.text):
            if link.startswith("/"):
                assert link.startswith(f"{PATH}/"), (address, link)
            parts = urlsplit(urljoin(address, link.replace("&amp;", "&")))
            waiting.append(parts.path + (f"?{parts.query}" if parts.query else ""))
    return found


@pytest.mark.full
@pytest.mark.parametrize("strips", [True, False], ids=["taken off", "passed on"])
def test_no_address_of_any_page_leaves_the_path(handbuilt: Path, strips: bool) -> None:
    found = crawl(behind(handbuilt, strips=strips, root_path=PATH), f"{PATH}/")
    assert {f"{PATH}/", f"{PATH}/layers", f"{PATH}/search", f"{PATH}/questions", f"{PATH}/L0.M0"} <= set(found)
    assert any("/static/" in address for address in found)
    assert sum(bool(text) for text in found.values()) > 20


def test_searching_for_a_memory_leads_to_its_page(handbuilt: Path) -> None:
    answer = behind(handbuilt, root_path=PATH).get(f"{PATH}/search?q=L0.M1")
    assert answer.headers["location"] == f"{PATH}/L0.M1"


def test_pages_without_a_proxy_are_as_ever(handbuilt: Path) -> None:
    plain = TestClient(create_app(Settings(handbuilt)), base_url="http://127.0.0.1:8765")
    below = TestClient(create_app(Settings(handbuilt, root_path=PATH)), base_url="http://127.0.0.1:8765")
    assert f'href="{PATH}/layers"' in below.get("/").text
    assert below.get("/").text.replace(f"{PATH}/", "/") == plain.get("/").text
    assert below.get("/L0.M0.json").json() == plain.get("/L0.M0.json").json()
    assert below.get("/openapi.json").json()["servers"] == [{"url": PATH}]


@pytest.mark.parametrize("strips", [True, False], ids=["taken off", "passed on"])
def test_judging_through_the_proxy(tmp_path: Path, strips: bool) -> None:
    """The access token, its cookie, forms with theirs, and the Origin that a browser sends."""
    reader = behind(annotated_atlas(tmp_path / "atlas"), strips=strips, public_url=PUBLIC, token="the-token")
    assert reader.get(f"{PATH}/").status_code == 401
    entered = reader.get(f"{PATH}/annotate?token=the-token")
    assert entered.headers["location"] == f"{PATH}/annotate"
    cookie = entered.headers["set-cookie"]
    assert f"Path={PATH}/;" in cookie
    assert cookie.endswith("Secure")
    assert "HttpOnly" in cookie
    page = reader.get(f"{PATH}/annotate")
    assert page.status_code == 200
    assert f'action="{PATH}/annotate/campaign"' in page.text
    assert page.headers["set-cookie"].endswith("Secure")
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page.text))
    names = re.findall(r'name="(\w+)"', page.text.partition("/annotate/campaign")[2].partition("</form>")[0])
    sent = dict.fromkeys(names, "1") | {"csrf": fields["csrf"], "name": "Ann"}
    refused = reader.post(f"{PATH}/annotate/campaign", data=sent, headers={"origin": "https://evil.example"})
    assert refused.status_code == 403
    begun = reader.post(f"{PATH}/annotate/campaign", data=sent, headers={"origin": "https://lab.example"})
    assert begun.status_code in (200, 303), begun.text
    if begun.is_redirect:
        assert begun.headers["location"].startswith(f"{PATH}/annotate")


@pytest.mark.parametrize("host", ["evil.example", "lab.example.evil.example", ""])
def test_other_names_stay_refused(handbuilt: Path, host: str) -> None:
    reader = behind(handbuilt, public_url=PUBLIC, token="the-token")
    assert reader.get(f"{PATH}/?token=the-token", headers={"host": host}).status_code == 403


@pytest.mark.parametrize(
    "origin",
    ["http://lab.example", "https://lab.example:444", "https://127.0.0.1:8765", "null", "https://evil.example"],
)
def test_a_post_from_another_origin_is_refused(handbuilt: Path, origin: str) -> None:
    reader = behind(handbuilt, public_url=PUBLIC, token="the-token")
    reader.get(f"{PATH}/?token=the-token")
    answer = reader.post(f"{PATH}/annotate/campaign", data={}, headers={"origin": origin})
    assert (answer.status_code, "another site" in answer.text) == (403, True)


def test_who_can_be_reached_by_a_proxy_has_a_token(handbuilt: Path) -> None:
    settings = with_token(Settings(handbuilt, public_url=PUBLIC))
    assert settings.token is not None
    assert settings.url == f"{PUBLIC}/?token={settings.token}"
    assert with_token(Settings(handbuilt, root_path=PATH)).url == f"http://127.0.0.1:8765{PATH}/"


def test_a_path_that_is_told_is_believed_only_where_that_was_said(handbuilt: Path) -> None:
    assert 'href="/layers"' in behind(handbuilt, told=PATH).get(f"{PATH}/").text
    assert f'href="{PATH}/layers"' in behind(handbuilt, told=PATH, trust_proxy=True).get(f"{PATH}/").text
    assert f'href="{PATH}/layers"' in behind(handbuilt, told=f"{PATH}/", trust_proxy=True).get(f"{PATH}/").text


@pytest.mark.fast(4)
@pytest.mark.parametrize(
    "told",
    ["//evil.example", "https://evil.example", '/"><script>', "/a b", "/a%22", "/..", "evil", "/a/../b?", "/\\evil"],
)
def test_a_hostile_path_is_not_believed(handbuilt: Path, told: str) -> None:
    text = behind(handbuilt, told=told, trust_proxy=True).get(f"{PATH}/").text
    assert 'href="/layers"' in text
    assert "evil" not in text
    assert "<script>" not in text


@pytest.mark.parametrize(
    "settings",
    [
        {"public_url": "lab.example/x"},
        {"public_url": "ftp://lab.example"},
        {"public_url": "https://u:p@lab.example"},
        {"public_url": "https://lab.example/?a=b"},
        {"public_url": 'https://lab.example/"x'},
        {"root_path": "no/slash"},
        {"root_path": "/a b"},
        {"root_path": "//evil.example"},
        {"root_path": "/a/../b"},
        {"root_path": "/a", "public_url": "https://lab.example/b"},
    ],
)
def test_addresses_that_cannot_be_are_refused(tmp_path: Path, settings: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=r"public_url|root_path"):
        Settings(tmp_path, **settings)  # type: ignore[arg-type]


def test_scripts_find_their_way_home_by_their_own_address() -> None:
    """Nothing in them is an address from the root of the host."""
    static = Path(__file__).parents[2] / "src/mnemoscope/web/static"
    for script in static.glob("*.js"):
        text = script.read_text(encoding="utf-8")
        assert not re.findall(r"""(?:fetch|assign|replace|open)\(\s*["'`]/""", text), script.name
        assert text.count("assign(answer.next)") == 0
