"""The verbs whose calls faults.py fails: what each begins with, runs, must keep, and must not claim. Not a test itself.

All of it runs in children of faults.py; at import only what is safe to fork is done.
"""

import importlib
import json
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

import faulty_server
from faulty_disk import Call
from mining_killed import files, sentences, tables
from mnemoscope.atlas import open_atlas
from mnemoscope.atlas.files import verify
from mnemoscope.atlas.manifest import MANIFEST
from mnemoscope.cli.app import run_verb
from mnemoscope.models.opening.handmade.models import WORDS

WARM = (
    *(f"mnemoscope.mining.{name}" for name in ("run", "merging", "text_pass", "text.batch_reader", "text.blocks")),
    *("mnemoscope.cluster.single_run", "mnemoscope.cli.mined", "mnemoscope.cli.drawing", "mnemoscope.questions"),
    *("mnemoscope.show.export.writing", "mnemoscope.search", "mnemoscope.annotate.campaigns.store"),
    *("mnemoscope.web.app", "pandas"),
    "_strptime",
)
"""What verbs import when they run, so that children need not, each of them."""
for module in WARM:
    importlib.import_module(module)
torch.set_num_threads(1)
MODEL = "handmade:planted"


@dataclass(frozen=True)
class Verb:
    """A verb: `prepare` makes `start` in the folder it is given; the others are given the folder that is now."""

    name: str
    prepare: Callable[[Path], None]
    run: Callable[[Path], int]
    again: Callable[[Path], int]
    """The next run, which ends with exit code 0."""
    kept: Callable[[Path], dict[str, bytes]]
    """What must not differ in the end."""
    claims: Callable[[Path, list[str], Mapping[str, bytes]], int]
    """0 if nothing says that it is whole which is not, and all that was noted is there; else prints what."""
    refused: Callable[[Call, int | None, str, str], str]
    """What is wrong with the exit code, stdout and stderr of a run in which this call failed, or ""."""


def one_line(call: Call, code: int | None, out: str, err: str) -> str:
    """A run ends with one plain line and 2; with 0 only where what could not be done is in nobody's way."""
    if code == 0:
        passing = call.kind.startswith("remove") or "work/beats" in call.path
        return "" if passing and "Traceback" not in err else f"exit 0 {err[-1500:]}"
    lines = [line for line in err.splitlines() if line.startswith("mnemoscope: ")]
    plain = len(lines) == 1 and err.rstrip().endswith(lines[0]) and "Traceback" not in err
    return "" if code == 2 and plain else f"exit {code}: {err[-1500:]}"


def whole_or_unfinished(root: Path, notes: list[str], expected: Mapping[str, bytes]) -> int:
    """Nothing but what an undisturbed run makes passes for an atlas, a part, a folder of answers or a report."""
    atlas = root / "atlas"
    if not (atlas / MANIFEST).is_file():
        return 0
    opened = open_atlas(atlas)
    # A table or a folder that no manifest covers yet claims nothing.
    passing = ("a table that no manifest lists", f"/{MANIFEST}: missing")
    wrong = [line for line in verify(atlas) if not line.endswith(passing)]
    found = {path: (atlas / path).read_bytes() for path in opened.manifest.hashes if (atlas / path).is_file()}
    wrong += [f"{path} is whole and differs" for path, data in found.items() if data != expected.get(path)]
    print("; ".join(wrong))
    return 1 if wrong else 0


def whole_or_being_replaced(root: Path, notes: list[str], expected: Mapping[str, bytes]) -> int:
    """As `whole_or_unfinished`; an older atlas may stand there, and `verify` may miss tables of it, but find no others.

    Its manifest goes last, so that what is left of it is not taken for a folder of somebody else.
    """
    atlas, before = root / "atlas", root.parent / "start" / "atlas"
    if not _is_older(atlas, before):
        return whole_or_unfinished(root, notes, expected)
    old, found = tables(before), tables(atlas)
    wrong = [f"{path} is not the older atlas's" for path, data in found.items() if data != old.get(path)]
    if not wrong and found.keys() != old.keys() and not verify(atlas):
        wrong = ["verify says that it is whole"]
    print("; ".join(wrong))
    return 1 if wrong else 0


def _is_older(atlas: Path, before: Path) -> bool:
    """Whether the manifest is still that of the atlas that lay there before."""
    return (atlas / MANIFEST).is_file() and (atlas / MANIFEST).read_bytes() == (before / MANIFEST).read_bytes()


def text(base: Path) -> str:
    """A small text of the handmade model's words."""
    path = base / "text.txt"
    if not path.exists():
        path.write_text(sentences(60, WORDS[2:], 1))
    return str(path)


def mined(out: Path, base: Path, *more: str) -> int:
    """`mnemoscope mine` with a checkpoint after every batch."""
    options = ["--split", "line", "--batch-tokens", "100", "--triggers", "5", "--checkpoint-every", "0"]
    return run_verb(["mine", MODEL, text(base), "--out", str(out), *options, *more])


def atlas_tables(root: Path) -> dict[str, bytes]:
    """Every table of the atlas that mining makes."""
    return {path: data for path, data in tables(root / "atlas").items() if not path.startswith("analyses/")}


def atlas_files(root: Path) -> dict[str, bytes]:
    """Every file of the atlas, and nothing left over; a lock file that nobody holds locks nothing."""
    return {path: data for path, data in files(root / "atlas").items() if not path.endswith(".lock")}


def _mine_again(root: Path) -> int:
    return _finish(root, lambda: mined(root / "atlas", root.parent))


def _finish(root: Path, work: Callable[[], int]) -> int:
    """The run again; where it had finished but for what needs no model, `analyze`, as the line of it says."""
    atlas = root / "atlas"
    if not (atlas / "manifest.json").exists():
        code = work()
        if code:
            return code
    if not (atlas / "patterns.parquet").exists() or any("no manifest" in line for line in verify(atlas)):
        code = run_verb(["analyze", str(atlas), "--patterns", "key_patterns"])
        if code:
            return code
    left = [str(path) for path in atlas.rglob("*.mnemoscope-tmp")] + verify(atlas)
    print(*left, file=sys.stderr)
    return 3 if left else 0


def _older(base: Path) -> None:
    """An atlas of another text in the place of the one to be mined."""
    other = base / "other"
    other.mkdir()
    (other / "text.txt").write_text(sentences(30, WORDS[2:], 2))
    if mined(base / "start" / "atlas", other):
        raise SystemExit("the older atlas was not made")


def _replace(root: Path) -> int:
    return mined(root / "atlas", root.parent, "--force")


def _replace_again(root: Path) -> int:
    """The same command again; where the new one was finished but for its patterns, `analyze`."""
    if _is_older(root / "atlas", root.parent / "start" / "atlas"):
        return _replace(root)
    return _finish(root, lambda: _replace(root))


def _merge(root: Path) -> int:
    parts = [str(root.parent / f"part-{part}") for part in (1, 2)]
    return run_verb(["merge", str(root / "atlas"), *parts])


def _merge_again(root: Path) -> int:
    return _finish(root, lambda: _merge(root))


def _prepare_merge(base: Path) -> None:
    for part in (1, 2):
        if mined(base / f"part-{part}", base, "--part", f"{part}/2"):
            raise SystemExit("the parts were not made")


def _bare(base: Path) -> None:
    """An atlas without patterns and answers."""
    atlas = base / "start" / "atlas"
    if mined(atlas, base):
        raise SystemExit("the atlas was not made")
    for name in ("patterns", "labels"):
        (atlas / f"{name}.parquet").unlink()
    shutil.rmtree(atlas / "analyses")


def _analyze(root: Path) -> int:
    return run_verb(["analyze", str(root / "atlas")])


def _analysed(base: Path) -> None:
    """An atlas with its answers, and the figures that the report will want."""
    _bare(base)
    if _analyze(base / "start"):
        raise SystemExit("the answers were not made")


def _prepare_report(base: Path) -> None:
    from mnemoscope.show.export import writing

    _analysed(base)
    atlas = base / "copy"
    shutil.copytree(base / "start" / "atlas", atlas)
    drawn: dict[str, dict[str, str]] = {}
    charts: dict[str, object] = {}
    draw, export = writing.drawn_figure, writing.export_figure

    def kept(chart: dict[str, object]) -> dict[str, bytes]:
        done = export(chart)
        drawn[json.dumps(chart, sort_keys=True)] = {ending: data.hex() for ending, data in done.items()}
        return done

    def kept_chart(opened: object, answers: object, question: str) -> object:
        charts[question] = draw(opened, answers, question)
        return charts[question]

    writing.export_figure, writing.drawn_figure = kept, kept_chart
    writing.write_report(atlas)
    shutil.rmtree(atlas)
    made = {"figures": drawn, "charts": charts, "vega": writing.vega_script()}
    (base / "drawn.json").write_text(json.dumps(made))


def _report(root: Path) -> int:
    """`mnemoscope report`, with charts and scripts that were made before: they take seconds, before any call."""
    from mnemoscope.show.export import writing

    made = json.loads((root.parent / "drawn.json").read_text())

    def export(chart: dict[str, object]) -> dict[str, bytes]:
        figure = made["figures"][json.dumps(chart, sort_keys=True)]
        return {ending: bytes.fromhex(data) for ending, data in figure.items()}

    writing.export_figure = export
    writing.drawn_figure = lambda opened, answers, question: made["charts"][question]
    writing.vega_script = lambda: made["vega"]
    return run_verb(["report", str(root / "atlas")])


def _search(root: Path) -> int:
    return run_verb(["search", str(root / "atlas"), WORDS[3]])


_COMMON = {"claims": whole_or_unfinished, "refused": one_line}

VERBS = {
    verb.name: verb
    for verb in (
        Verb(
            "mine",
            lambda base: text(base) and None,
            lambda root: mined(root / "atlas", root.parent),
            _mine_again,
            atlas_tables,
            **_COMMON,
        ),
        Verb(
            "replace",
            _older,
            _replace,
            _replace_again,
            atlas_tables,
            whole_or_being_replaced,
            one_line,
        ),
        Verb("merge", _prepare_merge, _merge, _merge_again, atlas_tables, **_COMMON),
        Verb("analyze", _bare, _analyze, _analyze, atlas_files, **_COMMON),
        Verb("report", _prepare_report, _report, _report, atlas_files, **_COMMON),
        Verb("search", _analysed, _search, _search, atlas_files, **_COMMON),
        Verb(
            "annotate",
            faulty_server.prepare,
            faulty_server.session,
            faulty_server.session,
            faulty_server.kept,
            faulty_server.claims,
            faulty_server.answered,
        ),
        Verb(
            "serve",
            faulty_server.prepare,
            faulty_server.browse,
            faulty_server.browse,
            atlas_files,
            whole_or_unfinished,
            faulty_server.answered,
        ),
    )
}
