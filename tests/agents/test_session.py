"""`mnemoscope mcp` as a client starts it: a process whose standard output is the protocol alone, and five questions
about the built-in model.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from mnemoscope.cli import main
from support.mined import mined_text

NOISY = """
import os, sys, warnings
from mnemoscope.agents import tools
from mnemoscope.cli import main

document = tools.MemoryDocument

def noisy(*given):
    print("printed by Python")
    os.write(1, b"written to descriptor 1\\n")
    warnings.warn("a warning")
    return document(*given)

tools.MemoryDocument = noisy
sys.exit(main(["mcp", *sys.argv[1:]]))
"""
HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


def test_standard_output_is_the_protocol_alone(planted: Path) -> None:
    """Of a whole session: what a tool prints, writes to descriptor 1 or warns of, and bugs, go to standard error."""
    calls: list[tuple[str, dict[str, Any]]] = [
        ("initialize", HELLO),
        ("tools/list", {}),
        ("tools/call", {"name": "show", "arguments": {"memory": "L0.M2"}}),
        ("tools/call", {"name": "show", "arguments": {"memory": "L9.M2"}}),
        ("tools/call", {"name": "trace", "arguments": {"prompt": "a red fox"}}),
        ("tools/call", {"name": "nothing", "arguments": {}}),
        ("no/such/method", {}),
    ]
    sent = [{"jsonrpc": "2.0", "id": at, "method": name, "params": given} for at, (name, given) in enumerate(calls)]
    sent.insert(1, {"jsonrpc": "2.0", "method": "notifications/initialized"})
    words = [sys.executable, "-c", NOISY, str(planted), "--model", "handmade:planted"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        lines, answered = [], set[int]()
        for message in sent:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
        while len(answered) < len(calls):
            lines.append(json.loads(process.stdout.readline()))
            answered |= {lines[-1]["id"]} if "id" in lines[-1] else set()
        process.stdin.close()
        rest, noise = process.stdout.read(), process.stderr.read().decode()
        assert process.wait(timeout=60) == 0
    assert rest == b""
    assert all(line["jsonrpc"] == "2.0" for line in lines)
    by_id = {line["id"]: line for line in lines if "id" in line}
    names = [tool["name"] for tool in by_id[1]["result"]["tools"]]
    assert names == ["search", "show", "layer", "trace", "attribute", "compare", "test_memories"]
    assert all(tool["annotations"]["readOnlyHint"] for tool in by_id[1]["result"]["tools"])
    assert "layer 9 is not in" in by_id[3]["result"]["content"][0]["text"]
    for part in ("printed by Python", "written to descriptor 1", "a warning"):
        assert part in noise


@pytest.mark.full
def test_a_client_answers_five_questions_about_the_built_in_model(tmp_path: Path) -> None:
    """Who promotes a token, what else is known of it, what the model says, what it says without it, and is that so."""
    lines = "bound method objects support getting arbitrary\na list of arbitrary objects\nReturn a list of strings\n"
    atlas = mined_text("builtin:pydocs", tmp_path, lines * 2, prefixes=0, removals=0).path
    prompt = "bound method objects support getting arbitr"
    asked: list[tuple[str, dict[str, Any]]] = [
        ("search", {"text": "ary", "by": "promotes", "limit": 20}),
        ("show", {"memory": "L5.M367"}),
        ("trace", {"prompt": prompt}),
        ("trace", {"prompt": prompt, "changes": ["L5.M367=0"]}),
        (
            "test_memories",
            {
                "memories": "L5.M367",
                "should_fire": [prompt, "an arbitr", "This takes arbitr"],
                "should_not_fire": ["Return a list of", "This takes three", "objects support getting"],
            },
        ),
    ]
    found, shown, traced, without, tested = session([str(atlas), "--model", "builtin:pydocs"], asked)
    assert "L5.M367" in [hit["memory"] for hit in found["hits"]]
    assert shown["memories"][0]["value"]["untrusted_text"]["top_texts"][0] == "ary"
    assert traced["prediction"][0]["untrusted_text"]["text"] == "ary"
    assert without["changed"]
    assert tested["memories"][0]["auc"] == 1.0
    effect = tested["set_to_0"]["should_fire"]
    assert effect["kl"] > 2 * effect["controls_kl"][2]


def session(words: Sequence[str], calls: Sequence[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    parameters = StdioServerParameters(
        command=sys.executable, args=["-m", "mnemoscope", "mcp", *words], env=dict(os.environ)
    )

    async def ask() -> list[dict[str, Any]]:
        async with Client(stdio_client(parameters)) as client:
            given = [await client.call_tool(name, asked) for name, asked in calls]
        assert not any(one.is_error for one in given), given
        return [json.loads("".join(part.text for part in one.content)) for one in given]

    return anyio.run(ask)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "Missing argument 'ATLAS'"),
        (["nowhere"], "nowhere does not exist (no manifest.json)"),
        (["ATLAS", "nowhere"], "nowhere does not exist"),
        (["ATLAS", "--model", "builtin:none"], "no built-in model 'none'"),
        (["ATLAS", "--device", "gpu"], "--device 'gpu' is not known"),
        (["ATLAS", "--json"], "--json does not go with mcp: standard output belongs to the protocol"),
    ],
)
def test_a_wrong_start_is_one_line(
    planted: Path, capfd: pytest.CaptureFixture[str], words: list[str], line: str
) -> None:
    assert main(["mcp", *(str(planted) if word == "ATLAS" else word for word in words)]) == 2
    told = capfd.readouterr().err.splitlines()
    assert len(told) == 1
    assert line in told[0]


def test_without_the_extra_it_says_how_to_install_it(
    planted: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert main(["mcp", str(planted)]) == 2
    assert capfd.readouterr().err == (
        "mnemoscope: mcp needs the package mcp, which is not installed; pip install 'mnemoscope[mcp]'\n"
    )


@pytest.mark.full
def test_another_model_is_told_to_the_agent_and_ctrl_c_ends_the_server(planted: Path) -> None:
    """The model is loaded while the server answers; a client that stays silent does not keep the process."""
    trace = {"name": "trace", "arguments": {"prompt": "a red fox"}}
    words = [sys.executable, "-m", "mnemoscope", "mcp", str(planted), "--model", "builtin:pydocs"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for at, (method, given) in enumerate([("initialize", HELLO), ("tools/call", trace)]):
            process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": at, "method": method, "params": given}).encode())
            process.stdin.write(b"\n")
            process.stdin.flush()
            line = json.loads(process.stdout.readline())
        assert line["result"]["isError"]
        assert "atlas was mined from another model than builtin:pydocs" in line["result"]["content"][0]["text"]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == -signal.SIGINT
