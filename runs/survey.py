"""Which of the text models that transformers lists the package reads, each shown by a tiny random model of its kind.

    python runs/survey.py [--only TYPE ...] [--share I/N] [--table]

Every entry of transformers' four lists of text models is built small, saved, proved by `inspect` and mined by `mine`,
and its atlas is compared with a reference that shares no code with the package (runs/survey_reference.py). An entry has
a process and a time limit of its own, so one that crashes or hangs does not stop the rest. Results are lines of JSON in
FOLDER/results.jsonl (`--out`): type the same command again to go on. Results of other versions of the libraries, of the
package or of this tool do not count. `--table` writes what the folder holds into docs/models.md; it runs nothing.

`--share I/N` takes the I-th of N seeded shares. The exit code is 1 if an entry is wrong, crashed, hung or could not be
compared. With a new version of transformers: install it, and run the tool and `--table` again.
"""

import argparse
import hashlib
import io
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "models.md"
BEGIN, END = "<!-- survey -->", "<!-- end of survey -->"
BAD = ("wrong", "crashed", "hung", "not compared")
STATES = ("verified", *BAD, "refused", "not built")
SENTENCES, LONGEST, VALIDATION = 90, 27, 12


def texts(seed: int = 0) -> tuple[list[list[int]], list[list[int]]]:
    """The token ids of the sentences to mine and of the held-out ones: no two are equal."""
    from survey_models import SPECIAL_TOKENS, WORDS

    draw = random.Random(seed)
    lengths = [1, 2, *(draw.randint(3, LONGEST) for _ in range(SENTENCES + VALIDATION - 2))]
    made = [[draw.randrange(len(SPECIAL_TOKENS), WORDS) for _ in range(length)] for length in lengths]
    return made[:SENTENCES], made[SENTENCES:]


def sources_of(sentences: list[list[int]], seed: int) -> list[list[int]]:
    """For each sentence the token ids of the source that an encoder-decoder reads it with."""
    from survey_models import SPECIAL_TOKENS, WORDS

    draw = random.Random(seed)
    lengths = [draw.choice((1, 4, 9, 14)) for _ in sentences]
    return [[draw.randrange(len(SPECIAL_TOKENS), WORDS) for _ in range(length)] for length in lengths]


def look_at(kind: str, type: str, folder: Path) -> dict[str, Any]:
    """What becomes of one entry, in the process of its own; the step that it is at stands in FOLDER/step."""
    import torch
    from transformers.utils import logging

    from survey_models import build, entries, keep_nothing, save
    from survey_reference import NotCompared, survey

    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    [entry] = (each for each in entries() if (each.kind, each.type) == (kind, type))
    begin_step(folder, "not built")
    try:
        model = build(entry)
        save(model, folder / "model", framed=kind == "masked" or model.config.is_encoder_decoder)
    except Exception as error:
        return {"state": "not built", "reason": f"{error.__class__.__name__}: {words_of(error)}"}
    keep_nothing(model)
    mined, held_out = texts()
    pairs = model.config.is_encoder_decoder
    sources = [sources_of(mined, 1), sources_of(held_out, 2)] if pairs else [None, None]
    for name, sentences, given in zip(("mined", "held-out"), (mined, held_out), sources, strict=True):
        lines = [" ".join(f"w{token}" for token in sentence) for sentence in sentences]
        if given is not None:
            words = (" ".join(f"w{token}" for token in source) for source in given)
            rows = zip(words, lines, strict=True)
            lines = [json.dumps({"source": source, "text": text}) for source, text in rows]
        (folder / f"{name}.{'jsonl' if pairs else 'txt'}").write_text("\n".join(lines) + "\n")
    begin_step(folder, "crashed")
    inspected, said = command("inspect", str(folder / "model"), "--json")
    if inspected is None:
        return {**said, "runs": runs_on_text(model)}
    found = {name: inspected[name] for name in ("kind", "family", "block", "gated", "activation")}
    ending, read = ("jsonl", ["--source-field", "source"]) if pairs else ("txt", ["--split", "line"])
    options = ["--validation", str(folder / f"held-out.{ending}"), *read, "--out", str(folder / "atlas")]
    atlas, said = command("mine", str(folder / "model"), str(folder / f"mined.{ending}"), *options, "--json")
    if atlas is None:
        return {**found, **said}
    begin_step(folder, "not compared")
    try:
        frame = ([1], [2] if kind == "masked" or pairs else [])
        compared = survey(text_model(model), folder / "atlas", mined, *frame, sources[0])
    except NotCompared as error:
        return {**found, "state": "not compared", "reason": words_of(error)}
    except Exception as error:
        traceback.print_exc()
        return {**found, "state": "not compared", "reason": f"{error.__class__.__name__}: {words_of(error)}"}
    state = {"state": "wrong", "reason": "; ".join(compared.first)} if compared.count else {"state": "verified"}
    return {**found, **{name: value for name, value in vars(compared).items() if name != "first"}, **state}


def runs_on_text(model: Any) -> bool:
    """Whether the model itself makes scores of text alone: if not, a refusal says nothing of the package."""
    import torch

    ids = torch.tensor([[1, 9, 8, 7]])
    try:
        model(input_ids=ids, **({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}))
    except Exception:
        return False
    return True


def text_model(model: Any) -> Any:
    """The model that text runs: itself, or the language model inside of one that needs a picture."""
    inside = (getattr(model, name, None) for name in ("language_model", "text_model", "text_decoder"))
    return next((each for each in (model, *inside) if each is not None and runs_on_text(each)), model)


def begin_step(folder: Path, state: str) -> None:
    """What the entry counts as if its process ends now."""
    (folder / "step").write_text(state)


def words_of(error: object) -> str:
    return " ".join(str(error).split())[:200]


def command(*words: str) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """The JSON that a command of mnemoscope prints; or None, and how it ended."""
    from mnemoscope.cli import main

    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(words)
    if code == 0:
        return json.loads(out.getvalue()), {}
    last = next(iter(err.getvalue().strip().splitlines()[::-1]), "")
    reason = last.removeprefix("mnemoscope: ").replace(words[1], "MODEL")
    return None, {"state": "refused" if code == 2 else "crashed", "reason": reason}


running: set["subprocess.Popen[bytes]"] = set()


def end(process: "subprocess.Popen[bytes]") -> None:
    """Ends a process and what it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def look_apart(entry: Any, seconds: float, made_by: dict[str, str]) -> dict[str, Any]:
    """What becomes of one entry, in a process that may crash or hang."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="survey-") as name:
        folder = Path(name)
        call = [sys.executable, "-W", "ignore", __file__, "--entry", entry.kind, entry.type, "--out", name]
        paths = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        with (folder / "said").open("w") as said:
            process = subprocess.Popen(
                call, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment, start_new_session=True
            )
            running.add(process)
            try:
                process.wait(seconds)
                hung = False
            except subprocess.TimeoutExpired:
                hung = True
            finally:
                end(process)
                running.discard(process)
        if hung:
            result = {"state": "hung", "reason": f"not done after {seconds:g} s"}
        elif (folder / "result.json").is_file():
            result = json.loads((folder / "result.json").read_text())
        else:
            step = (folder / "step").read_text() if (folder / "step").is_file() else "crashed"
            last = next(iter((folder / "said").read_text().strip().splitlines()[::-1]), "")
            result = {"state": step, "reason": f"the process ended with {process.returncode}: {last[:200]}"}
        took = round(time.monotonic() - began, 1)
        return {"list": entry.kind, "type": entry.type, "class": entry.model, **result, "seconds": took, **made_by}


def versions() -> dict[str, str]:
    """What results depend on: the libraries, and the sources of the package and of this tool."""
    import torch
    import transformers

    digest = hashlib.sha256()
    for path in [*sorted((ROOT / "src").rglob("*.py")), *sorted((ROOT / "runs").glob("survey*.py"))]:
        digest.update(path.read_bytes())
    libraries = {"transformers": transformers.__version__, "torch": torch.__version__}
    return {**libraries, "python": platform.python_version(), "sources": digest.hexdigest()[:12]}


def read_results(folder: Path, made_by: dict[str, str]) -> dict[tuple[str, str], dict[str, Any]]:
    """The results of these versions; a line that was cut off is none."""
    found = {}
    if (folder / "results.jsonl").is_file():
        for line in (folder / "results.jsonl").read_text().splitlines():
            try:
                result = json.loads(line)
            except ValueError:
                continue
            if made_by.items() <= result.items():
                found[result["list"], result["type"]] = result
    return found


def chosen(only: list[str], share: str | None) -> list[Any]:
    from survey_models import entries

    every = entries()
    unknown = sorted(set(only) - {each.type for each in every})
    if unknown:
        raise SystemExit(f"survey: transformers lists no text model {unknown[0]!r}")
    if only:
        every = [each for each in every if each.type in only]
    if share:
        number, of = (int(each) if each.isdecimal() else 0 for each in [*share.split("/"), ""][:2])
        if not 1 <= number <= of:
            raise SystemExit(f"survey: --share is I/N with 1 <= I <= N, not {share!r}")
        random.Random(0).shuffle(every)
        every = every[number - 1 :: of]
    return every


def run(options: argparse.Namespace) -> int:
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell gives what it starts in the background no Ctrl-C
        signal.signal(number, signal.default_int_handler)
    made_by = versions()
    print("survey: " + ", ".join(f"{name} {value}" for name, value in made_by.items()), file=sys.stderr, flush=True)
    entries = chosen(options.only, options.share)
    options.out.mkdir(parents=True, exist_ok=True)
    done = read_results(options.out, made_by)
    missing = [each for each in entries if (each.kind, each.type) not in done]
    began = time.monotonic()
    with (options.out / "results.jsonl").open("a") as file, ThreadPoolExecutor(options.jobs) as pool:
        file.write("\n")  # behind a line that was cut off
        waiting = [pool.submit(look_apart, each, options.seconds, made_by) for each in missing]
        try:
            for number, future in enumerate(as_completed(waiting), 1):
                result = future.result()
                file.write(json.dumps(result) + "\n")
                file.flush()
                done[result["list"], result["type"]] = result
                left = (time.monotonic() - began) / number * (len(missing) - number) / 60
                print(
                    f"[{number}/{len(missing)}] {line_of(result)} (about {left:.0f} min left)",
                    file=sys.stderr,
                    flush=True,
                )
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in [*running]:
                end(process)
            print(f"survey: stopped; {options.out}/results.jsonl holds what was found", file=sys.stderr)
            return 130
    results = [done[each.kind, each.type] for each in entries]
    print(counts(results))
    for result in results:
        if result["state"] in BAD:
            print(line_of(result))
    return int(any(result["state"] in BAD for result in results))


def line_of(result: dict[str, Any]) -> str:
    return f"{result['list']} {result['type']}: {outcome(result)}"


def outcome(result: dict[str, Any]) -> str:
    """The result in words."""
    if result["state"] in ("verified", "wrong"):
        seen = f"{result['memories']:,} memories, {result['triggers']:,} triggers"
        if result["state"] == "verified":
            return f"verified: {seen}"
        return f"WRONG: {seen}, {result['count']:,} differences: {result['reason']}"
    alone = "" if result.get("runs", True) else " (this model does not run on text alone)"
    return f"{result['state']}: {result['reason']}{alone}"


def counts(results: list[dict[str, Any]]) -> str:
    """One line: how many entries ended how, and what was compared."""
    states = Counter(result["state"] for result in results)
    verified = [result for result in results if result["state"] == "verified"]
    seen = [f"{states[state]} {state}" for state in STATES if states[state]]
    memories, triggers = (sum(each[name] for each in verified) for name in ("memories", "triggers"))
    compared = f"{memories:,} memories, {triggers:,} triggers"
    largest = max((each["largest_error"] for each in verified), default=0.0)
    return f"{len(results)} entries: {', '.join(seen)}; compared {compared}, largest error {largest:.1g}"


def write_table(folder: Path) -> None:
    """The table of docs/models.md, between its markers."""
    from survey_models import entries

    made_by = versions()
    results = sorted(read_results(folder, made_by).values(), key=lambda each: (each["type"], each["list"]))
    if not results:
        raise SystemExit(f"survey: {folder} holds no results of these versions; run python runs/survey.py first")
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    stated = ", ".join(f"{name} {made_by[name]}" for name in ("transformers", "torch", "python"))
    rows = [f"With {stated}: of {len(entries())} entries {len(results)} were looked at.", "", f"{counts(results)}.", ""]
    rows += ["| type | list | class | block | result |", "|---|---|---|---|---|"]
    rows += [table_row(each) for each in results]
    PAGE.write_text(f"{before}{BEGIN}\n" + "\n".join(rows) + f"\n{END}{after}", encoding="utf-8")


def table_row(result: dict[str, Any]) -> str:
    block = ""
    if "block" in result:
        block = f"{result['block']}, {'gated ' if result['gated'] else ''}{result['activation']}"
    cells = (f"`{result['type']}`", result["list"], f"`{result['class']}`", block, outcome(result).replace("|", "\\|"))
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="TYPE", help="only entries of these types")
    parser.add_argument("--share", metavar="I/N", help="only the I-th of N seeded shares of the entries")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build" / "survey", metavar="FOLDER", help="where results lie"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="entries at a time")
    parser.add_argument("--seconds", type=float, default=180, metavar="S", help="the time limit of an entry")
    parser.add_argument("--table", action="store_true", help="write the table of docs/models.md, and run nothing")
    parser.add_argument("--entry", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.entry:
        result = look_at(*options.entry, options.out)
        (options.out / "result.json").write_text(json.dumps(result))
        return 0
    if options.table:
        write_table(options.out)
        return 0
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
