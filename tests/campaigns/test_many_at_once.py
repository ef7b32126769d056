"""Twenty annotators save at once, in threads and in processes: nothing is lost, nothing doubled."""

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from campaigns.conftest import Opening
from mnemoscope.annotate.campaigns.database import Database
from mnemoscope.annotations import Store, open_store
from mnemoscope.atlas import Atlas

PROGRAM = Path(__file__).parents[2] / "runs/saving_annotators.py"
PEOPLE = 20


def saved(store: Store) -> Counter[str]:
    with store.database.reading() as connection:
        return Counter(f"{author} {key}" for author, key in connection.execute("SELECT author, key FROM judgements"))


def everything(count: int) -> Counter[str]:
    names = (f"annotator {number}" for number in range(PEOPLE))
    return Counter(f"{name} judgement-{number:05}" for name in names for number in range(count))


def saving(store: Store, first: int, last: int, count: int) -> "subprocess.Popen[str]":
    command = [sys.executable, PROGRAM, store.atlas.path, store.database.path, first, last, count]
    return subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.full
def test_in_processes_of_several_servers(store: Store) -> None:
    for number in range(PEOPLE):
        store.invite(f"annotator {number}")
    servers = [saving(store, first, first + 10, 5) for first in (0, 10)]
    told: Counter[str] = Counter()
    for server in servers:
        out, complaints = server.communicate(timeout=120)
        assert server.returncode == 0, complaints
        told.update(out.splitlines())
    assert saved(store) == everything(5) == told


@pytest.mark.full
def test_a_server_that_is_killed_loses_nothing_that_it_answered(store: Store, opening: Opening) -> None:
    for number in range(PEOPLE):
        store.invite(f"annotator {number}")
    server = saving(store, 0, 4, 100_000)
    answered = [server.stdout.readline().strip() for _ in range(10)]
    server.kill()
    answered += [line.strip() for line in server.stdout if line.endswith("\n")]
    server.wait()
    server.stdout.close()
    server.stderr.close()
    found = saved(opening())
    assert set(answered) <= set(found)
    assert set(found.values()) == {1}


def all_at_once(*work: Callable[[], object]) -> None:
    """What one of them raises is raised."""
    gate = threading.Barrier(len(work))

    def begin(one: Callable[[], object]) -> None:
        gate.wait()
        one()

    with ThreadPoolExecutor(len(work)) as threads:
        for done in [threads.submit(begin, one) for one in work]:
            done.result()


def test_servers_that_begin_at_once_make_one_campaign(shared_atlas: Atlas, swift: Path) -> None:
    place = swift / "annotations.sqlite"

    def begin(number: int) -> None:
        with open_store(shared_atlas, place) as store:
            store.start_campaign(keys_per_layer=2)
            store.invite(f"annotator {number}")

    all_at_once(*(partial(begin, number) for number in range(6)))
    with open_store(shared_atlas, place) as store, store.database.reading() as connection:
        tables = ("annotations_version", "campaigns", "items", "annotators")
        counts = [connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables]
    assert counts == [1, 1, 4 + 5 + 4, 6]


def test_servers_that_open_one_new_file_at_once_wait_for_each_other(tmp_path: Path) -> None:
    def open_file(place: Path) -> None:
        Database(place, atlas="0" * 64).close()

    for number in range(8):
        all_at_once(*[partial(open_file, tmp_path / f"{number}.sqlite")] * 6)
