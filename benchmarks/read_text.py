"""How much faster a text is read and cut into tokens by all cores than by one: `python benchmarks/read_text.py TEXT`.

Reads the text with the built-in model's tokenizer, in fresh processes, by one core and by all in turn. Prints the
seconds of each pair, the median ratio, whether both made the same bytes, and the resident memory.
"""

import argparse
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def read(text: str) -> None:
    """Reads the text in this process; prints seconds, bytes resident and the hash of everything that was written."""
    from mnemoscope.corpus import open_source, prepare
    from mnemoscope.models import load_model

    model = load_model("builtin:pydocs", device="cpu")
    with tempfile.TemporaryDirectory(prefix="mnemoscope-") as folder:
        began = time.perf_counter()
        copy = prepare(
            open_source(text),
            model,
            directory=Path(folder),
            longest=model.longest,
            split="sentence",
            vocabulary=model.sizes.vocabulary,
            max_tokens=1 << 40,
        )
        seconds, digest = time.perf_counter() - began, hashlib.sha256()
        for file in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
            digest.update(file.read_bytes())
        tokens = int(copy.counts["mined_tokens"])
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({"seconds": seconds, "tokens": tokens, "mb": resident, "hash": digest.hexdigest()}))


def main() -> None:
    """Prints one line a pair, and the median."""
    parser = argparse.ArgumentParser(description="How much faster all cores read a text than one.")
    parser.add_argument("text")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here:
        read(given.text)
        return
    cores, ratios, hashes = sorted(os.sched_getaffinity(0)), [], set()
    for _ in range(given.pairs):
        found = []
        for allowed in (cores[:1], cores):
            os.sched_setaffinity(0, allowed)  # which the new process takes over
            command = [sys.executable, __file__, given.text, "--here"]
            found.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        ratios.append(found[0]["seconds"] / found[1]["seconds"])
        hashes |= {one["hash"] for one in found}
        times = ", ".join(f"{one['seconds']:.1f} s ({one['mb']} MB)" for one in found)
        print(f"1 and {len(cores)} cores: {times}: {ratios[-1]:.2f}; {found[0]['tokens']:,} tokens", flush=True)
    print(f"median {statistics.median(ratios):.2f}; {'the same bytes' if len(hashes) == 1 else 'BYTES DIFFER'}")


if __name__ == "__main__":
    main()
