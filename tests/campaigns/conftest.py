"""A shared atlas, and stores on new files."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mnemoscope.annotations import Annotator, Store, open_store
from mnemoscope.atlas import Atlas
from support.judged_atlas import judged_atlas

Opening = Callable[[], Store]


def someone(store: Store, name: str = "Ada") -> Annotator:
    found = store.annotator(store.invite(name).token)
    assert found is not None
    return found


def codes(store: Store, kind: str) -> list[str]:
    """Codes of items, which no annotator can tell apart."""
    with store.database.reading() as connection:
        asked = "SELECT code FROM items WHERE kind = ? ORDER BY layer, memory"
        return [code for (code,) in connection.execute(asked, (kind,))]


@pytest.fixture(scope="session")
def shared_atlas(tmp_path_factory: pytest.TempPathFactory) -> Atlas:
    """Never written to: stores of tests lie elsewhere."""
    return judged_atlas(tmp_path_factory.mktemp("judged") / "atlas")


@pytest.fixture
def swift() -> Iterator[Path]:
    """A folder in memory where there is one: every judgement waits for the disk, and a test need not."""
    memory = Path("/dev/shm")
    where = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="mnemoscope-test-", dir=where) as folder:
        yield Path(folder)


@pytest.fixture
def opening(shared_atlas: Atlas, swift: Path) -> Iterator[Opening]:
    """Opens another store on the same file, as another server would."""
    opened: list[Store] = []

    def another() -> Store:
        opened.append(open_store(shared_atlas, swift / "annotations.sqlite"))
        return opened[-1]

    yield another
    for one in opened:
        one.close()


@pytest.fixture
def store(opening: Opening) -> Store:
    """A store with a campaign: 3 keys in either of two layers, 5 controls, 4 compositions."""
    found = opening()
    found.start_campaign(keys_per_layer=3)
    return found
