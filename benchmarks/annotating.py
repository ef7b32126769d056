"""How many judgements twenty annotators can save in a second: `python benchmarks/annotating.py ATLAS [FILE]`.

Each annotator is a thread that saves fifty judgements one after the other, as fast as answers come; none may be lost.
FILE is where a new database goes; without it, a file in a temporary folder.
"""

import sys
import tempfile
import threading
import time
from pathlib import Path

from mnemoscope.annotations import Annotator, KeyView, Store, open_store
from mnemoscope.atlas import Atlas, open_atlas

PEOPLE, JUDGEMENTS = 20, 50


def save(store: Store, annotator: Annotator, seconds: list[float]) -> None:
    """Saves judgements of the first items that show enough prefixes, and notes how long each took."""
    codes = [place.code for place in store.places(annotator) if place.kind == "key"]
    views = [view for code in codes[:10] if isinstance(view := store.view(code, annotator), KeyView)]
    views = [view for view in views if len(view.prefixes) >= 3]
    for number in range(JUDGEMENTS):
        code = views[number % len(views)].code
        began = time.perf_counter()
        store.save(
            code, annotator, kind="shallow", description=f"pattern {number}", marks=[0, 1, 2], pattern=number % 9
        )
        seconds.append(time.perf_counter() - began)


def measure(atlas: Atlas, at: str) -> None:
    """Prints the figures."""
    with open_store(atlas, at) as store:
        began = time.perf_counter()
        campaign = store.start_campaign()
        print(f"campaign of {campaign.keys} keys and {campaign.controls} controls: {time.perf_counter() - began:.2f} s")
        people = [store.invite(f"annotator {number}").annotator for number in range(PEOPLE)]
        seconds: list[float] = []
        threads = [threading.Thread(target=save, args=(store, annotator, seconds)) for annotator in people]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        whole = time.perf_counter() - began
        with store.database.reading() as connection:
            (count,) = connection.execute("SELECT count(*) FROM judgements").fetchone()
        assert count == PEOPLE * JUDGEMENTS, f"{count} of {PEOPLE * JUDGEMENTS} judgements are there"
        seconds.sort()
        median, late = seconds[len(seconds) // 2], seconds[int(0.99 * len(seconds))]
        print(
            f"{count} judgements of {PEOPLE} people at once, none lost: {count / whole:.0f} a second with the views;"
            f" one takes {1000 * median:.0f} ms at the median, {1000 * late:.0f} ms at p99"
        )


if __name__ == "__main__":
    where = open_atlas(Path(sys.argv[1]))
    if len(sys.argv) > 2:
        measure(where, sys.argv[2])
    else:
        with tempfile.TemporaryDirectory() as folder:
            measure(where, str(Path(folder) / "annotations.sqlite"))
