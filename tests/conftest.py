"""Settings of every test: two cores shared by workers, no network, the same examples every time; and a browser."""

import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

# Before any test imports torch or a tokenizer: several workers share the machine, and threads would fight.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAYON_NUM_THREADS", "1")
os.environ.setdefault("POLARS_MAX_THREADS", "1")
# What a test says of numbers and bytes is true of the CPU.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TRITON_INTERPRET"] = "1"  # and so what a card does is done there, too
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
# A shell starts what runs in its background deaf to Ctrl-C, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
from hypothesis import settings

from support.browser import Visits, chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def flush_at_once(handle: int) -> None:
    """`os.fsync` without the wait for the disk, 5 ms of which each atlas would take a hundred times.

    No test cuts the power, and a killed process takes nothing from the files that it wrote; that everything is flushed,
    and in which order, tests/support/durable.py follows. What is no open file is refused as ever.
    """
    os.fstat(handle)


os.fsync = flush_at_once  # type: ignore[assignment]

settings.register_profile("here", deadline=None, derandomize=True)
settings.load_profile("here")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Settles the level of every test: `full` where it opens pages in Chromium, or is behind the first of `fast`."""
    seen = Counter[str]()
    for item in items:
        mark, function = item.get_closest_marker("fast"), item.nodeid.partition("[")[0]
        seen[function] += 1
        if "running_chromium" in getattr(item, "fixturenames", ()) or (mark and seen[function] > mark.args[0]):
            item.add_marker(pytest.mark.full)
        if mark and seen[function] > mark.kwargs.get("full", len(items)):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real disk of 1 MB, where mounting is allowed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = [shutil.which("mount") or "false", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    yield folder
    # Lazily: the error that a test holds keeps the mapped files of its frames alive.
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="module")
def running_chromium() -> "Iterator[Browser]":
    """One browser for all tests of a module."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def visit(running_chromium: "Browser") -> Iterator[Visits]:
    """Opens pages in Chromium; they are closed when the test ends."""
    visits = Visits(running_chromium)
    yield visits
    visits.close()


# --- atlases that all tests share: each is made once by a worker, and a test that changes one changes its copy -------


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[Path], Path]:
    """Copies a shared atlas into the test's own folder."""
    return lambda atlas: Path(shutil.copytree(atlas, tmp_path / "atlas"))


def only_read(atlas: Path) -> Iterator[Path]:
    """The atlas; at the end nobody may have changed it, but for the search index that servers put beside it."""

    def files() -> dict[str, tuple[int, int]]:
        found = ((path.relative_to(atlas), path.stat()) for path in atlas.rglob("*") if path.is_file())
        return {str(path): (state.st_size, state.st_mtime_ns) for path, state in found if path.parts[0] != "search"}

    before = files()
    yield atlas
    assert files() == before, "a test changed an atlas that others read"


@pytest.fixture(scope="session")
def handbuilt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The atlas of support/handbuilt_atlas.py."""
    from support.handbuilt_atlas import build_atlas

    yield from only_read(build_atlas(tmp_path_factory.mktemp("handbuilt") / "atlas"))


def mined_lines(folder: Path, model: object, lines: Iterable[str], **options: object) -> Iterator[Path]:
    from support.mined import mined_text

    yield from only_read(mined_text(model, folder, "\n".join(lines) + "\n", **options).path)


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """`handmade:planted` mined on its sentences with the usual options."""
    from mnemoscope.models.opening.handmade.models import PLANTED_SENTENCES

    yield from mined_lines(tmp_path_factory.mktemp("planted"), "handmade:planted", PLANTED_SENTENCES)


@pytest.fixture(scope="session")
def experts_atlas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The planted experts mined on their sentences, none of them held out; every prefix may be a trigger."""
    from models import planted_experts

    folder = tmp_path_factory.mktemp("experts")
    (folder / "other.txt").write_text("the bird\n")
    options = {"per_sentence": "all", "validation": folder / "other.txt"}
    yield from mined_lines(folder, planted_experts.load(), planted_experts.SENTENCES, **options)


@pytest.fixture(scope="session")
def tiny_atlas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A tiny GPT-2 mined on the odd text."""
    from mining.conftest import odd_text, tiny_model

    lines = odd_text().splitlines()
    yield from mined_lines(tmp_path_factory.mktemp("tiny"), tiny_model("gpt2"), lines, triggers=5, batch_tokens=150)


@pytest.fixture(scope="session")
def gated_atlas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A tiny Llama mined on the odd text."""
    from mining.conftest import odd_text, tiny_model

    lines = odd_text().splitlines()
    yield from mined_lines(tmp_path_factory.mktemp("gated"), tiny_model("llama"), lines, triggers=5, batch_tokens=150)


@pytest.fixture(scope="session")
def answered_atlas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The atlas of `reports.reported_atlas` with all its answers; for all tests, so it is copied before a change."""
    from mnemoscope.questions import write_all
    from reports.reported_atlas import reported

    atlas = reported(tmp_path_factory.mktemp("answered") / "atlas")
    write_all(atlas)
    return atlas.path


@pytest.fixture(scope="session")
def reported_atlas(answered_atlas: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same atlas with its report besides, whose figures take long to draw; copied before a change, too."""
    from mnemoscope.show.export import write_report

    atlas = shutil.copytree(answered_atlas, tmp_path_factory.mktemp("reported") / "atlas")
    write_report(atlas)
    return atlas
