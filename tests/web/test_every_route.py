"""Every route of the OpenAPI description, asked with whatever Schemathesis makes up: an answer, never a fault.

Right requests and wrong ones: as a stranger with a model behind the pages, and as an annotator whose forms count.
Where an answer refuses, it does so in one sentence and with a status of the refuser's; nothing shows code, and the
safety headers stand on everything. One test for all routes, because Schemathesis's own for pytest does not know the
newest pytest.
"""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance
from starlette.testclient import TestClient

from web.judging import codes, host, invited, served
from web.planted_atlas import SPEC

pytestmark = pytest.mark.full

HOST = {"Host": "127.0.0.1:8765"}
REFUSALS = {400, 401, 403, 404, 405, 409, 413, 414, 415, 422}
MOVED = {301, 302, 303, 307, 308}
MORE = os.environ.get("MNEMOSCOPE_EXAMPLES")
"""How many requests to make up of each route, other ones every time; the suite makes up the same few."""
SLOWEST = 10.0
"""Seconds that an answer may take where many are asked for."""
GROWTH = 256 << 20
"""Bytes by which many answers may let this process grow, after the first fifth of them."""
MADE_UP = settings(
    max_examples=int(MORE or 16),
    deadline=None,
    derandomize=MORE is None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def test_a_stranger_is_answered_everywhere(planted: Path) -> None:
    app = served(planted, model=SPEC)
    there = {"name": "L1.M4", "layer": 1, "token": 3, "question": "value_agreement", "ending": "csv"}
    found = statuses(app, there)
    good = {path for path, said in found.items() if 200 in said}
    assert good >= {"/", "/{name}", "/layers/{layer}", "/trace", "/audit"}
    assert 404 in found["/{name}"]
    assert TestClient(app, base_url=f"http://{HOST['Host']}").get("/L1.M4?pattern=999").status_code == 400
    assert all(said == {403} for path, said in found.items() if path.endswith(("/save", "/campaign", "/import")))


def test_an_annotator_s_forms_are_answered(atlas: Path) -> None:
    app = served(atlas)
    ada = invited(app, host(app), "Ada")
    headers = {"X-CSRF-Token": ada.csrf, "Accept": "application/json"}
    found = statuses(app, {"code": codes(ada)[0], "name": "L0.M1"}, headers=headers, cookies=dict(ada.web.cookies))
    assert {404, 409} <= found["/annotate/items/{code}/save"]  # believed, but there is no such item, or no such class
    assert 200 in found["/annotate/items/{code}/none"]
    assert found["/annotate/campaign"] <= {401, 403}  # the host's alone


def statuses(
    app: FastAPI, there: Mapping[str, Any], *, headers: Mapping[str, str] = {}, cookies: Mapping[str, str] = {}
) -> dict[str, set[int]]:
    """What every route answered; `there` are names in paths that exist, taken half of the time."""
    schema = schemathesis.openapi.from_asgi("/openapi.json", app, headers=HOST)
    found: dict[str, set[int]] = defaultdict(set)
    wrong = []
    operations = [result.ok() for result in schema.get_all_operations()]
    resident = psutil.Process().memory_info
    settled = resident().rss
    for number, operation in enumerate(operations):
        if number == len(operations) // 5:
            settled = resident().rss
        answers = asked(operation, there, found[operation.path], headers=HOST | dict(headers), cookies=dict(cookies))
        try:
            answers()
        except Exception as problem:  # gathered, so that one route does not hide another
            wrong.append(f"{operation.label}: {problem!r}"[:1_500])
    assert not wrong, "\n\n".join(wrong)
    grown = resident().rss - settled
    print(f"{len(operations)} routes, {MORE or 16} requests each; grown by {grown >> 20} MiB after the first fifth")
    assert MORE is None or grown < GROWTH
    return found


def asked(operation: Any, there: Mapping[str, Any], said: set[int], **sent: Any) -> Callable[[], None]:
    """Asks one route with all that is made up, and adds what it answered to `said`."""

    @MADE_UP
    @given(case=operation.as_strategy(), known=st.booleans())
    def answers(case: Any, known: bool) -> None:
        if known:
            case.path_parameters.update({name: there[name] for name in case.path_parameters if name in there})
        began = time.monotonic()
        answer = case.call(**sent)
        assert MORE is None or time.monotonic() - began < SLOWEST, f"{case.method} {case.path}: slow"
        check(case, answer)
        said.add(answer.status_code)

    return answers


def check(case: Any, answer: Any) -> None:
    """That an answer may be given, with its safety headers, in the form that the description promises."""
    said = f"{case.method} {case.path}: {answer.status_code} {answer.text[:300]}"
    assert answer.status_code in {200, 201, 304, 503} | REFUSALS | MOVED, said
    policy = answer.headers["content-security-policy"][0]
    assert "default-src 'none'" in policy, said
    assert "unsafe" not in policy, said
    assert "Traceback" not in answer.text, said
    assert 'File "' not in answer.text, said
    kind = answer.headers.get("content-type", [""])[0]
    if answer.status_code in REFUSALS | {503} and kind.startswith("application/json"):
        problem = answer.json()
        assert problem["status"] == answer.status_code, said
        assert problem["message"].strip(), said
        assert "\n" not in problem["message"], said
    case.validate_response(answer, checks=[content_type_conformance, response_schema_conformance])
