"""How many of the judged patterns the finder finds: recall by kind, on the keys to work with and on those held out.

    python benchmarks/judged_patterns/score.py ATLAS JUDGED.jsonl

The atlas is the one that was judged (smollm2-wiki of runs/real-models.sh, with 4 memories a layer for removals; its
triggers do not depend on those). A judged pattern counts as found where a pattern of its kind has at least half of its
triggers. What the finder has beyond these is no false alarm: the judges named at most six patterns.
"""

import json
import sys
from pathlib import Path

import polars as pl

from mnemoscope.atlas import open_atlas


def main() -> None:
    """Prints one line for each kind and part."""
    atlas = open_atlas(sys.argv[1])
    judged = [json.loads(line) for line in Path(sys.argv[2]).read_text(encoding="utf-8").splitlines()]
    for use in ("work", "held_out"):
        own = [item for item in judged if item["use"] == use]
        for kind in ("shallow", "semantic"):
            found = every = 0
            for item in own:
                patterns = atlas[item["memory"]].patterns().filter(pl.col("kind") == kind)["triggers"].to_list()
                for wanted in (set(one["ranks"]) for one in item["patterns"] if one["kind"] == kind):
                    every += 1
                    found += any(2 * len(wanted & set(triggers)) >= len(wanted) for triggers in patterns)
            print(f"{use}: {kind}: {found} of {every} judged patterns of {len(own)} keys")


if __name__ == "__main__":
    main()
