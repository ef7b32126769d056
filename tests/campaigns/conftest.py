"""One PostgreSQL server for all tests of a worker, and every store's test on both kinds of database."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from mnemoscope.annotate.judgements.tables import items
from mnemoscope.annotations import Annotator, Store, open_store
from mnemoscope.atlas import Atlas
from support.judged_atlas import judged_atlas
from support.postgresql import Server, postgresql

Opening = Callable[[], Store]


def someone(store: Store, name: str = "Ada") -> Annotator:
    found = store.annotator(store.invite(name).token)
    assert found is not None
    return found


def codes(store: Store, kind: str) -> list[str]:
    """Codes of items, which no annotator can tell apart."""
    with store.database.reading() as connection:
        asked = select(items.c.code).where(items.c.kind == kind).order_by(items.c.layer, items.c.memory)
        return [str(code) for code in connection.execute(asked).scalars()]


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with postgresql() as running:
        yield running


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


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, swift: Path) -> str:
    """The address of an empty database."""
    if request.param == "sqlite":
        return str(swift / "annotations.sqlite")
    server: Server = request.getfixturevalue("server")
    return server.database()


@pytest.fixture
def opening(shared_atlas: Atlas, place: str) -> Iterator[Opening]:
    """Opens another store on the same database, as another server would."""
    opened: list[Store] = []

    def another() -> Store:
        opened.append(open_store(shared_atlas, place))
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
