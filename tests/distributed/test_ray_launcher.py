"""Workers as actors of Ray: started, told to stop, dead, failed; clusters that do not answer, or want a token."""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from mnemoscope.errors import OptionError
from mnemoscope.runs.launch.ray_cluster import check_answer, connect_to_ray
from mnemoscope.runs.launch.ray_launcher import RayLauncher
from support.waiting_work import wait_for_stop

pytestmark = pytest.mark.full

with_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs ray, the extra of that name")
TESTS = Path(__file__).parents[1]
TOKENS = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def wait_until(what: Callable[[], Any], seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)
    return found


def text_of(file: Path) -> str:
    wait_until(file.exists)
    return file.read_text(encoding="utf-8")


def launcher(directory: Path, **options: Any) -> RayLauncher:
    known: dict[str, Any] = {"address": None, "threads": 1, "gpus_per_worker": 0, "workers": 2, "worker_options": {}}
    return RayLauncher(directory, work=wait_for_stop, **known | options)


@pytest.fixture(scope="module")
def ray_here() -> Iterator[str]:
    """The address of an instance with two CPUs, that this process is connected to; tests of this module share it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RAY_ADDRESS", *TOKENS):
            patch.delenv(name, raising=False)
        patch.setenv("PYTHONPATH", f"{TESTS}:{os.environ.get('PYTHONPATH', '')}")
        before = signal.getsignal(signal.SIGTERM)
        with connect_to_ray(None, cpus=2):
            import ray

            assert signal.getsignal(signal.SIGTERM) is before
            yield ray.get_runtime_context().gcs_address
    assert not any(name in os.environ for name in TOKENS)


@pytest.fixture
def atlas(tmp_path: Path, ray_here: str) -> Path:
    return tmp_path


@with_ray
def test_workers_work_where_they_are_told_to_until_they_are_asked_to_stop(atlas: Path) -> None:
    launched = launcher(atlas)
    wait_until(lambda: launched.capacity() == 2)
    launched.start("one")
    launched.start("two")
    said = [text_of(atlas / name) for name in ("one", "two")]
    assert len({text.split()[0] for text in said}) == 2
    assert str(os.getpid()) not in {text.split()[0] for text in said}
    assert {text.split()[1] for text in said} == {"1"}, "the threads of a worker"
    assert {text.split()[2] for text in said} == {os.getcwd()}, "a model's relative name means the same"
    wait_until(lambda: launched.capacity() == 0)
    launched.start("waits for room")
    assert launched.take_ended() == {}
    launched.stop()
    assert sorted(path.name for path in atlas.iterdir()) == ["one", "one-saved", "two", "two-saved"]


@with_ray
def test_why_workers_end(atlas: Path) -> None:
    launched = launcher(atlas)

    def end(name: str, sign: Callable[[], Any]) -> str | None:
        launched.start(name)
        wait_until((atlas / name).exists)
        assert launched.take_ended() == {}
        sign()
        reasons = wait_until(launched.take_ended)
        assert list(reasons) == [name]
        return reasons[name]

    node = os.uname().nodename
    assert end("done", (atlas / "done-ends").touch) is None
    said = end("error", (atlas / "error-raises").touch)
    assert said == f"layer 3 has a NaN; load the model in float32 (on node {node})"
    assert end("bug", (atlas / "bug-fails").touch) == f"ZeroDivisionError on node {node}: division by zero"
    said = end("killed", lambda: os.kill(int((atlas / "killed").read_text().split()[0]), signal.SIGKILL))
    assert said is not None
    assert said.startswith(f"the worker's process on node {node} ended: The actor died unexpectedly")
    wait_until(lambda: launched.capacity() == 2)
    launched.stop()


@with_ray
def test_a_worker_that_does_not_end_is_killed(atlas: Path) -> None:
    launched = launcher(atlas, worker_options={"deaf": True}, patience=0.3)
    launched.start("deaf")
    process = text_of(atlas / "deaf").split()[0]
    launched.stop()
    wait_until(lambda: not Path(f"/proc/{process}").exists())
    assert not (atlas / "deaf-saved").exists()


@with_ray
def test_a_node_that_does_not_see_the_folder_says_so(atlas: Path) -> None:
    launched = launcher(atlas / "elsewhere")
    launched.start("lost")
    said = wait_until(launched.take_ended)["lost"]
    assert said.startswith(f"the folder '{atlas}/elsewhere' is not on node {os.uname().nodename}; put the atlas on a")
    launched.stop()


@with_ray
def test_a_worker_for_whom_no_node_has_room_is_refused(atlas: Path) -> None:
    with pytest.raises(OptionError, match=r"3 CPU, .* \(there: 2 CPU\)"):
        launcher(atlas, threads=3)
    with pytest.raises(OptionError, match=r"1 CPU and 0\.5 GPU"):
        launcher(atlas, gpus_per_worker=0.5)


@with_ray
def test_what_ray_says_of_a_cluster_that_it_does_not_join_is_passed_on(
    ray_here: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    check_answer(ray_here)
    monkeypatch.setenv("HOME", str(tmp_path))
    token = os.environ["RAY_AUTH_TOKEN"]
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    for address, line in (
        (ray_here, "token is missing or incorrect; see"),
        ("127.0.0.1:1", "Failed to connect to GCS at address"),
        ("nobody.invalid:6379", "Failed to connect to GCS at address"),
        ("here", "Invalid address format: here"),
    ):
        with pytest.raises(OptionError) as told:
            check_answer(address, seconds=10)
        assert str(told.value).startswith(f"ray={address!r}: ")
        assert line in str(told.value)
        assert str(told.value).endswith("; see `ray status` there, and what docs/scale.md says of Ray")
        assert len(str(told.value).splitlines()) == 1
    monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    check_answer(ray_here)
    assert capfd.readouterr() == ("", "")


@with_ray
def test_a_cluster_of_another_version_is_refused(ray_here: str) -> None:
    from ray._private.ray_constants import KV_NAMESPACE_CLUSTER
    from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put

    metadata = _internal_kv_get(b"CLUSTER_METADATA", namespace=KV_NAMESPACE_CLUSTER)
    other = {**json.loads(metadata), "ray_version": "2.1.0", "python_version": "3.10.4"}
    _internal_kv_put(b"CLUSTER_METADATA", json.dumps(other).encode(), overwrite=True, namespace=KV_NAMESPACE_CLUSTER)
    try:
        with pytest.raises(OptionError, match=r"Version mismatch.* Ray: 2\.1\.0 Python: 3\.10\.4"):
            check_answer(ray_here)
    finally:
        _internal_kv_put(b"CLUSTER_METADATA", metadata, overwrite=True, namespace=KV_NAMESPACE_CLUSTER)


def test_ray_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OptionError, match=re.escape("not installed; pip install 'mnemoscope[ray]'")):
        launcher(tmp_path)


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a cluster of two nodes with one CPU each, which asks for the token in our environment."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    monkeypatch.setenv("PYTHONPATH", f"{TESTS}:{os.environ.get('PYTHONPATH', '')}")
    command = [sys.executable, str(TESTS.parent / "runs/ray_nodes.py"), "2"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as nodes:
        assert nodes.stdout is not None
        yield nodes.stdout.readline().strip()
        nodes.communicate()


JOINING = """
import sys
from pathlib import Path
from test_ray_launcher import launcher, text_of, wait_until
directory = Path(sys.argv[1])
launched = launcher(directory, address=sys.argv[2])
wait_until(lambda: launched.capacity() == 2)  # nodes tell of their room now and then
launched.start("one")
launched.start("two")
texts = [text_of(directory / name) for name in ("one", "two")]
assert len({text.split()[3] for text in texts}) == 2, "a raylet each"
if len(sys.argv) > 3:
    sys.stdin.read()
launched.stop()
"""


@with_ray
def test_workers_run_on_the_nodes_of_a_cluster_and_die_with_their_driver(two_nodes: str, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    environment = {**os.environ, "PYTHONPATH": f"{Path(__file__).parent}:{os.environ['PYTHONPATH']}"}
    command = [sys.executable, "-c", JOINING, str(tmp_path / "first"), two_nodes]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
    assert (tmp_path / "first" / "one-saved").exists()
    assert (tmp_path / "first" / "two-saved").exists()
    command = [sys.executable, "-c", JOINING, str(tmp_path / "second"), two_nodes, "stay"]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE) as driver:
        files = [tmp_path / "second" / name for name in ("one", "two")]
        wait_until(lambda: all(file.exists() for file in files))
        driver.kill()
    processes = [Path("/proc") / file.read_text().split()[0] for file in files]
    wait_until(lambda: not any(process.exists() for process in processes))
