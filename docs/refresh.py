"""Run the commands that the pages show, and paste what they print.

    python docs/refresh.py                  # all pages; --check changes nothing and says which pages are old
    python docs/refresh.py --without demo   # leaves the blocks alone that say `demo`, which takes minutes
    python docs/refresh.py --figure1 ATLAS  # draws docs/figures/figure1.svg with the labels of the demo's atlas
    python docs/refresh.py --pictures ATLAS # takes README's picture anew (needs Debian's chromium), of the atlas
                                            # smollm2-wiki that runs/real-models.sh makes

In a block fenced as `console`, a line that begins with `$ ` is a command, and what follows is its output. A block
fenced as `python` is run if a block fenced as `text` follows it directly; that one is its output. All run in one new
folder, in order, each command once, with the `mnemoscope` and `python` of this environment; only standard output is
pasted. A command that fails fails the run, unless its line ends in `# refused`; then its last line of errors is pasted,
too. The memory of the demo that the pages show becomes the demo's most striking one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    "README.md",
    "docs/tour.md",
    "docs/models.md",
    "docs/scale.md",
    "docs/training.md",
    "docs/tracing.md",
    "docs/search.md",
)
PICTURES = {
    "docs/figures/memory-page.png": "python docs/refresh.py --pictures ATLAS",
    "docs/figures/figure1.svg": "python docs/refresh.py --figure1 mnemoscope-demo",
    **{
        f"docs/figures/{name}.svg": "runs/paper.sh"
        for name in (
            "key_patterns",
            "key_removals",
            "value_agreement",
            "value_rank",
            "value_confidence",
            "layer_activity",
            "layer_composition",
            "refinement_match",
            "refinement_confidence",
            "refinement_events",
        )
    },
}
"""Every picture of the pages, and the command that makes it."""
FIGURE1 = ("builtin:pydocs", "Return a list of", 0)
"""Model, prompt and layer of docs/paper.md's first picture."""
SEEN = (
    *(f"show/pages/templates/{name}.html" for name in ("memory", "parts", "page")),
    "web/static/style.css",
)
"""What README's picture shows, in the package; `docs/figures/seen.txt` holds its hash when the picture was taken."""
REFUSED = "  # refused"
_CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)
_PYTHON = re.compile(r"```python\n((?:(?!```).)*)```\n\n```text\n(.*?)```", re.DOTALL)

_SHOWN = re.compile(r'(mnemoscope-demo (?=L)|open_atlas\("mnemoscope-demo"\)\nmemory = atlas\[")L\d+\.M\d+')


def commands(page: str) -> Iterator[str]:
    """Yield every command of a page's console blocks, without the prompt, in order."""
    for block in _CONSOLE.finditer(page):
        yield from (line[2:] for line in block.group(1).splitlines() if line.startswith("$ "))


class Scratch:
    """A folder where commands run; each is run once, however often the pages show it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, str] = {}
        tools = folder / ".bin"
        tools.mkdir()
        for name, arguments in (("mnemoscope", "-m mnemoscope "), ("python", "")):
            tool = tools / name
            tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n', encoding="utf-8")
            tool.chmod(0o755)
        source = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
        path = f"{tools}:{os.environ['PATH']}"
        self._environment = os.environ | {"PATH": path, "PYTHONPATH": source, "COLUMNS": "118"}

    def run(self, command: str) -> str:
        """Return what the command prints; raises SystemExit if it fails and is not marked as refused."""
        if command not in self._known:
            print(f"$ {command}", file=sys.stderr, flush=True)
            self._known[command] = self._output(["bash", "-c", command], command)
        return self._known[command]

    def run_python(self, script: str) -> str:
        """Return what the script prints."""
        print("python:", script.splitlines()[0], "...", file=sys.stderr, flush=True)
        return self._output([sys.executable, "-c", script], "a python block")

    def _output(self, arguments: list[str], name: str) -> str:
        done = subprocess.run(
            arguments, cwd=self.folder, env=self._environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        refused = name.endswith(REFUSED)
        if (done.returncode != 0) != refused:
            raise SystemExit(f"{name}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        printed = done.stdout.replace(f"{self.folder}/", "") + (
            done.stderr.strip().splitlines()[-1] + "\n" if refused else ""
        )
        return "".join(line.rstrip() + "\n" for line in printed.rstrip().splitlines())


def with_best_memory(page: str, scratch: Scratch) -> str:
    """Return the page with the demo's most striking memory as the one of the demo that is shown."""
    if _SHOWN.search(page) is None:
        return page
    scratch.run("mnemoscope demo")
    best = json.loads(scratch.run("mnemoscope demo --json"))["striking"][0]["name"]
    return _SHOWN.sub(rf"\g<1>{best}", page)


def refreshed(page: str, scratch: Scratch, *, without: str | None = None) -> str:
    """Return the page with fresh output in every block that shows any, in order; not in those that say `without`."""
    found: list[re.Match[str]] = sorted(
        [*_CONSOLE.finditer(page), *_PYTHON.finditer(page)], key=lambda block: block.start()
    )
    pieces, end = [], 0
    for block in found:
        if without is not None and without in block.group():
            continue
        pieces.append(page[end : block.start()])
        if block.re is _PYTHON:
            pieces.append(f"```python\n{block.group(1)}```\n\n```text\n{scratch.run_python(block.group(1))}```")
        else:
            lines = [f"$ {command}\n{scratch.run(command)}" for command in commands(block.group())]
            pieces.append(f"```console\n{''.join(lines)}```")
        end = block.end()
    return "".join([*pieces, page[end:]])


def hash_seen() -> str:
    """Return the sha256, in hex, of what README's picture shows."""
    return hashlib.sha256(b"".join((ROOT / "src/mnemoscope" / name).read_bytes() for name in SEEN)).hexdigest()


def take_picture(scratch: Scratch, atlas: Path) -> None:
    """Photograph the page of the memory of SmolLM2 that README shows."""
    shown = re.search(r"serve smollm2`, (L\d+\.M\d+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert shown is not None, "README names no memory of its picture"
    picture = ROOT / next(iter(PICTURES))
    scratch.run(
        f"mnemoscope serve {shlex.quote(str(atlas.resolve()))} --port 0 --json > place & server=$!; "
        "trap 'kill $server' EXIT; until grep -q annotations place; do sleep 0.2; done; "
        f"""url=$(sed -n 's/.*"url": "\\(.*\\)",/\\1/p' place); """
        "chromium --headless --no-sandbox --disable-gpu --disable-background-networking --hide-scrollbars "
        f'--user-data-dir="$PWD/browser" --window-size=1180,1160 --screenshot="{picture}" "${{url}}{shown[1]}" '
        "2>/dev/null"
    )
    (picture.parent / "seen.txt").write_text(hash_seen() + "\n", encoding="utf-8")


def main() -> None:
    """Refresh the pages named, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", default=PAGES)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--without", metavar="TEXT")
    parser.add_argument("--pictures", metavar="ATLAS", type=Path)
    parser.add_argument("--figure1", metavar="ATLAS", type=Path)
    arguments = parser.parse_args()
    if arguments.figure1:
        import mnemoscope as ms

        ms.figure1(*FIGURE1, atlas=arguments.figure1).save(ROOT / "docs/figures/figure1.svg")
        return
    if arguments.pages == PAGES and arguments.pictures:
        with tempfile.TemporaryDirectory(prefix="mnemoscope-docs-") as folder:
            take_picture(Scratch(Path(folder)), arguments.pictures)
        return
    old = []
    with tempfile.TemporaryDirectory(prefix="mnemoscope-docs-") as folder:
        scratch = Scratch(Path(folder))
        for name in arguments.pages:
            before = (ROOT / name).read_text(encoding="utf-8")
            page = before if arguments.without else with_best_memory(before, scratch)
            after = refreshed(page, scratch, without=arguments.without)
            if after != before:
                old.append(name)
                if not arguments.check:
                    (ROOT / name).write_text(after, encoding="utf-8")
    print("changed: " + (", ".join(old) or "nothing"))
    if old and arguments.check:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
