"""Measure sentence splitters: speed on real text, behaviour on hostile text, and what they do with hard cases.

It does not decide anything: the figures and the choice are in docs/log. Splitters that are not installed are left out.

    python benchmarks/splitters.py ../shared/data/wiki-2015/articles.txt.xz --megabytes 2
    python benchmarks/splitters.py --docstrings            # the standard library's own docstrings
"""

from __future__ import annotations

import argparse
import ast
import importlib
import lzma
import re
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Splitter = Callable[[str], list[str]]

HARD_CASES = (
    "Dr. Smith arrived at 3 p.m. on Jan. 5th. He left.",
    "Pi is 3.14 and e is 2.72. See Fig. 3, e.g. the left part, i.e. the good one. Done.",
    "The U.S. Army came. J. R. R. Tolkien wrote it. No. 5 is alive!",
    '"Stop!" he said. "Why?" she asked. (It was late.) They went on...  And on.',
    "Use os.path.join(a, b). Returns None. See https://docs.python.org/3/library/os.html. New in 3.5.",
    "It was released in January 2011 in Japan . The game began in 2010 , carrying over work .",
    "Это первое предложение. Это второе! 这是第一句。这是第二句。",
)

# The pathological inputs a splitter must survive in seconds: nothing here has a natural end of sentence.
HOSTILE = {
    "1 MB of letters": "a" * 1_000_000,
    "1 MB of words": "word " * 200_000,
    "1 MB of periods": "." * 1_000_000,
    "1 MB of 'A. '": "A. " * 333_333,
    "1 MB of '(('": "(" * 1_000_000,
    "1 MB of quotes": '"' * 1_000_000,
    "100k newlines": "\n" * 100_000,
    "1 MB of digits and periods": "1.2." * 250_000,
}

PLAIN = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]*[A-Z0-9])")


def splitters() -> Iterator[tuple[str, Splitter]]:
    """Yield name and function of every splitter that is installed."""
    yield "plain regex", PLAIN.split
    makers: dict[str, Callable[[Any], Splitter]] = {
        "mnemoscope.corpus.sources.sentences": (
            lambda module: lambda text: list(module.split_sentences(text, "sentence"))
        ),
        "sentencex": lambda module: lambda text: list(module.segment("en", text)),
        "blingfire": lambda module: lambda text: str(module.text_to_sentences(text)).split("\n"),
        "syntok.segmenter": lambda module: (
            lambda text: [
                "".join(token.spacing + token.value for token in sentence)
                for paragraph in module.process(text)
                for sentence in paragraph
            ]
        ),
        "csbd": lambda module: module.Segmenter(language="en").segment,
        "pysbd": lambda module: module.Segmenter(language="en", clean=False).segment,
    }
    for name, make in makers.items():
        try:
            yield name, make(importlib.import_module(name))
        except ImportError:
            print(f"{name}: not installed", file=sys.stderr)


def docstrings() -> Iterator[str]:
    """Yield the docstrings of the standard library, read with `ast`."""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node)
                if text:
                    yield from re.split(r"\n\s*\n", text)


def paragraphs(path: Path | None, limit: int) -> list[str]:
    """Return whole paragraphs of a text, about `limit` bytes in all."""
    if path is None:
        found = docstrings()
    else:
        packed = lzma.open if path.suffix == ".xz" else open
        opened = packed(path, "rt", encoding="utf-8")
        found = (line.strip() for line in opened if line.strip())
    chosen: list[str] = []
    size = 0
    for paragraph in found:
        chosen.append(paragraph)
        size += len(paragraph.encode())
        if size >= limit:
            break
    return chosen


def main() -> None:
    """Print one table of speeds, one of hostile inputs and the hard cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", nargs="?", type=Path, help="a .txt or .txt.xz file with a paragraph per line")
    parser.add_argument("--docstrings", action="store_true", help="read the standard library's docstrings instead")
    parser.add_argument("--megabytes", type=float, default=2.0)
    parser.add_argument("--hostile", action="store_true", help="also time hostile input (slow splitters take minutes)")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds per splitter before it is cut short")
    arguments = parser.parse_args()
    if arguments.text is None and not arguments.docstrings:
        parser.error("name a text or give --docstrings")
    texts = paragraphs(None if arguments.docstrings else arguments.text, int(arguments.megabytes * 1e6))
    found = list(splitters())
    print(f"{'splitter':30} {'MB/s':>8} {'sentences':>10} {'MB read':>8}")
    for name, split in found:
        split(texts[0])
        size = count = 0
        start = time.perf_counter()
        for text in texts:
            count += len(split(text))
            size += len(text.encode())
            if time.perf_counter() - start > arguments.budget:
                break
        print(f"{name:30} {size / 1e6 / (time.perf_counter() - start):8.2f} {count:10} {size / 1e6:8.2f}")
    if arguments.hostile:
        for title, text in HOSTILE.items():
            for name, split in found:
                start = time.perf_counter()
                count = len(split(text))
                print(f"{title:30} {name:30} {time.perf_counter() - start:8.2f} s {count:10}", flush=True)
    for case in HARD_CASES:
        print(f"\n{case}")
        for name, split in found:
            print(f"  {name:30} {' | '.join(piece.strip() for piece in split(case))}")


if __name__ == "__main__":
    main()
