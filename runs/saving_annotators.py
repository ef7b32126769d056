"""Annotators in a process of their own, saving as fast as they can; run by tests, killed by one. Not a test itself.

    python saving_annotators.py ATLAS DATABASE FIRST LAST JUDGEMENTS

Annotators FIRST to LAST-1 are threads. Each sends every judgement twice, as a page does that got no answer, and every
answer is printed as a line: annotator, key.
"""

import sys
import threading
from pathlib import Path

from mnemoscope.annotations import Annotator, KeyView, Store, open_store
from mnemoscope.atlas import open_atlas


def save_all(store: Store, name: str, count: int) -> None:
    """Saves so many judgements of one annotator, each twice."""
    annotator = Annotator(name)
    codes = [place.code for place in store.places(annotator) if place.kind == "key"]
    views = [view for code in codes if isinstance(view := store.view(code, annotator), KeyView)]
    for number in range(count):
        view = views[number % len(views)]
        for _ in range(2):
            saved = store.save(
                view.code,
                annotator,
                kind="shallow",
                description=f"number {number}",
                marks=[0, 1, 2],
                pattern=number % 20,
                key=f"judgement-{number:05}",
            )
        sys.stdout.write(f"{name} {saved.key}\n")
        sys.stdout.flush()


def main() -> None:
    atlas, database, first, last, count = sys.argv[1:]
    with open_store(open_atlas(Path(atlas)), database) as store:
        threads = [
            threading.Thread(target=save_all, args=(store, f"annotator {number}", int(count)))
            for number in range(int(first), int(last))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
