"""Kills mining, analyze and report at random moments, lets them go on, and compares every byte; prints JSON.

`warm`: children are forked from this process, which has torch and the models loaded, so the moments fall into the
work. `real`: the command itself, `python -m mnemoscope mine`. `analyze` and `report`: children that make patterns,
answers and figures of a mined atlas. `model`: the command with a model, a text and options of `mine`; it says what
every kill cost. All are real processes and the kill is SIGKILL.
Run by tests/mining/test_resume.py with few kills, by runs/kills.sh with many.

    python runs/mining_killed.py warm|real|analyze|report KILLS SEED FOLDER
    python runs/mining_killed.py model KILLS SEED FOLDER MODEL TEXT [OPTION ...]
"""

import os

# A forked child has no threads but one, so nothing may have started a pool before.
os.environ.update(
    OMP_NUM_THREADS="1",
    RAYON_NUM_THREADS="1",
    POLARS_MAX_THREADS="1",
    TOKENIZERS_PARALLELISM="false",
    HF_HUB_OFFLINE="1",
)

import json
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

MOMENTS = (
    *("start", "reading text", "mining", "tables", "values", "removals", "predictions", "scales"),
    "patterns",
)
"""What a kill waits for; it falls a random while after."""
PER_FOLDER = 6
"""Kills of one run before it may finish."""


def sentences(count: int, words: tuple[str, ...], seed: int) -> str:
    """A text of one sentence a line, some twice."""
    chance = random.Random(seed)
    lines = [" ".join(chance.choices(words, k=chance.randint(1, 9))) for _ in range(count)]
    return "\n".join(lines + lines[: count // 10]) + "\n"


def tables(atlas: Path) -> dict[str, bytes]:
    """The bytes of every table of the atlas."""
    paths = {path.relative_to(atlas).as_posix(): path for path in sorted(atlas.rglob("*.parquet"))}
    return {name: path.read_bytes() for name, path in paths.items() if not name.startswith("work/")}


def child(work: Callable[[Callable[[str], None]], None], tell: int) -> None:
    """Works in this forked process and ends it; writes every stage that begins to the pipe `tell`."""
    code, told = 1, [""]

    def stage(name: str) -> None:
        if told[0] != name:
            told[0] = name
            os.write(tell, f"{name}\n".encode())

    try:
        work(stage)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def run(
    work: Callable[[Callable[[str], None]], None], *, moment: str | None, wait: float
) -> tuple[bool, str, dict[str, float]]:
    """Works in a child, killed `wait` seconds after `moment` began (never, if None).

    Returns whether it was killed, the last stage it told of, and when each began.
    """
    hear, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(hear)
        child(work, tell)
    os.close(tell)
    began, at = time.perf_counter(), {"start": 0.0}
    last = "start"
    with os.fdopen(hear, "rb", buffering=0) as pipe:
        if moment != "start":
            while line := pipe.readline():
                last = line.decode().strip()
                at[last] = time.perf_counter() - began
                if last == moment:
                    break
        if moment is not None:
            time.sleep(wait)
            os.kill(pid, signal.SIGKILL)
        while line := pipe.readline():
            last = line.decode().strip()
    _, status = os.waitpid(pid, 0)
    at["end"] = time.perf_counter() - began
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit("a child failed")
    return os.WIFSIGNALED(status), last, at


def warm(kills: int, seed: int, base: Path) -> dict[str, Any]:
    """Kills children of this process that mine tiny models."""
    import torch

    torch.set_num_threads(1)
    from mining.conftest import WORDS, tiny_model
    from mnemoscope.corpus.tokenized import first_pass
    from mnemoscope.mining import mine

    first_pass.SENTENCES_AT_ONCE, first_pass.BATCH_SENTENCES = 50, 50
    models = {name: tiny_model(name) for name in ("gpt2", "gpt2-relu")}
    text = base / "text.txt"
    text.write_text(sentences(3_000, tuple(WORDS), seed))
    chance = random.Random(seed)
    happened: Counter[str] = Counter()
    done = runs = 0
    options: dict[str, Any] = {"split": "line", "triggers": 8, "batch_tokens": 500}
    whole: dict[str, tuple[dict[str, bytes], dict[str, float]]] = {}
    for name, model in models.items():
        out = base / f"whole-{name}"

        def work(stage: Callable[[str], None], model: Any = model, out: Path = out) -> None:
            mine(model, text, out=out, progress=lambda told, *_, stage=stage: stage(told), **options)

        at = run(work, moment=None, wait=0)[2]
        whole[name] = (tables(out), at)
    while done < kills:
        name = chance.choice(list(models))
        expected, at = whole[name]
        out = base / f"killed-{runs}"
        runs += 1
        every = chance.choice([0.02, 0.05, 0.2, 60.0])

        def work(
            stage: Callable[[str], None], model: Any = models[name], out: Path = out, every: float = every
        ) -> None:
            mine(
                model,
                text,
                out=out,
                checkpoint_every=every,
                progress=lambda told, *_, stage=stage: stage(told),
                **options,
            )

        for attempt in range(PER_FOLDER + 1):
            moments = [m for m in MOMENTS if m in at]
            moment = chance.choice(moments) if attempt < PER_FOLDER and done < kills else None
            ends = sorted(at.values())
            length = 0.0 if moment is None else ends[ends.index(at[moment]) + 1] - at[moment]
            killed, last, _ = run(work, moment=moment, wait=chance.uniform(0, 1.1 * length))
            done += killed
            happened[last] += killed
            if not killed or (out / "manifest.json").exists():
                break
        if killed or not (out / "patterns.parquet").exists():  # killed after it was sealed; the rest needs no model
            run(lambda stage, out=out: answers(out, stage), moment=None, wait=0)
            shutil.rmtree(out / "analyses")
        if tables(out) != expected:
            wrong = [path for path, data in tables(out).items() if expected.get(path) != data]
            raise SystemExit(f"{out} differs in {wrong or 'the set of its tables'}")
        if list(out.rglob("*.mnemoscope-tmp")) or (out / "unfinished.json").exists():
            raise SystemExit(f"{out} is left untidy")
    return {"kills": done, "runs": runs, "killed in": dict(happened)}


def answers(atlas: Path, stage: Callable[[str], None]) -> None:
    """What `mnemoscope analyze` does."""
    from mnemoscope.atlas import open_atlas
    from mnemoscope.questions import write_all

    write_all(open_atlas(atlas), progress=lambda told, *_: stage(told))


def report(atlas: Path, stage: Callable[[str], None]) -> None:
    """What `mnemoscope report` does."""
    from mnemoscope.show.export import write_report

    write_report(atlas, progress=lambda told, *_: stage(told))


def later(verb: str, kills: int, seed: int, base: Path) -> dict[str, Any]:
    """Kills children that make an atlas's patterns, answers and report; nothing of polars or the figures runs here."""
    from mnemoscope.mining import mine
    from mnemoscope.models.opening.handmade.models import WORDS

    text = base / "text.txt"
    text.write_text(sentences(1_500, WORDS[2:], seed))
    bare, whole = base / "bare", base / "whole"
    run(lambda stage: mine("handmade:planted", text, out=bare, split="line", triggers=30) and None, moment=None, wait=0)
    for name in ("patterns", "labels"):
        (bare / f"{name}.parquet").unlink()
    shutil.rmtree(bare / "analyses")
    work = answers if verb == "analyze" else report
    shutil.copytree(bare, whole)
    at = run(lambda stage: work(whole, stage), moment=None, wait=0)[2]
    expected = files(whole)
    chance = random.Random(seed)
    happened: Counter[str] = Counter()
    done = runs = 0
    while done < kills:
        out = base / f"killed-{runs}"
        runs += 1
        shutil.copytree(bare, out)
        for attempt in range(PER_FOLDER + 1):
            moment = chance.choice(list(at)[:-1]) if attempt < PER_FOLDER and done < kills else None
            ends = sorted(at.values())
            length = 0.0 if moment is None else ends[ends.index(at[moment]) + 1] - at[moment]
            wait = chance.uniform(0, 1.1 * length)
            killed, last, _ = run(lambda stage, out=out: work(out, stage), moment=moment, wait=wait)
            done += killed
            happened[last] += killed
            if not killed:
                break
        if (found := files(out)) != expected:
            wrong = sorted(path for path in found | expected if found.get(path) != expected.get(path))
            raise SystemExit(f"{out} differs in {wrong}")
    return {"kills": done, "runs": runs, "killed in": dict(happened)}


def files(atlas: Path) -> dict[str, bytes]:
    """The bytes of every file but run.json, temporary ones and locks included."""
    paths = (path for path in sorted(atlas.rglob("*")) if path.is_file() and path.name != "run.json")
    return {path.relative_to(atlas).as_posix(): path.read_bytes() for path in paths}


def real(kills: int, seed: int, base: Path) -> dict[str, Any]:
    """Kills the command itself."""
    from mnemoscope.models.opening.handmade.models import WORDS

    text = base / "text.txt"
    text.write_text(sentences(6_000, WORDS[2:], seed))
    chance = random.Random(seed)

    def start(out: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "mnemoscope", "mine", "handmade:planted", str(text), "--out", str(out)]
        options = ["--split", "line", "--batch-tokens", "400", "--checkpoint-every", "0.5"]
        return subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def wait_for_work(process: subprocess.Popen[bytes], out: Path) -> None:
        while process.poll() is None and not (out / "unfinished.json").exists():
            time.sleep(0.002)

    def end(process: subprocess.Popen[bytes]) -> bytes:
        said = process.communicate()[1]
        if process.returncode:
            raise SystemExit(f"the command failed: {said.decode()}")
        return said

    process = start(base / "whole")
    wait_for_work(process, base / "whole")
    began = time.perf_counter()
    end(process)
    usual = time.perf_counter() - began
    expected = tables(base / "whole")
    done = runs = 0
    while done < kills:
        out = base / f"killed-{runs}"
        runs += 1
        for _ in range(min(PER_FOLDER, kills - done)):
            process = start(out)
            wait_for_work(process, out)
            time.sleep(chance.uniform(0, 0.7 * usual))
            process.kill()
            process.communicate()
            if process.returncode == -signal.SIGKILL:
                done += 1
            else:
                break
        if not (out / "manifest.json").exists():
            end(start(out))
        if tables(out) != expected:
            raise SystemExit(f"{out} differs")
    return {"kills": done, "runs": runs, "seconds": round(usual, 2)}


def model(kills: int, seed: int, base: Path, words: list[str]) -> dict[str, Any]:
    """Kills the command itself on any model; a kill costs what was done since the last line of the run's record (or
    since the command began), and the time until the next command takes the run up.
    """

    def start(out: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "mnemoscope", "mine", *words, "--out", str(out)]
        usual = {name: value for name, value in os.environ.items() if not name.endswith("_THREADS")}
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=usual)

    whole, out, chance = base / "whole", base / "killed", random.Random(seed)
    began = time.time()
    if start(whole).wait():
        raise SystemExit("the command failed")
    whole_seconds = time.time() - began
    costs: list[dict[str, float]] = []
    while True:
        began = time.time()
        process = start(out)
        wait = chance.uniform(0, 3.5 * whole_seconds / kills) if len(costs) < kills else None
        stop = time.time() + (wait or float("inf"))
        if costs:  # the next command takes it up
            while process.poll() is None and time.time() < stop:
                marks = out / "unfinished.json"
                if marks.exists() and marks.stat().st_mtime > began:
                    costs[-1]["taking up"] = round(time.time() - began, 1)
                    break
                time.sleep(0.05)
        while process.poll() is None and time.time() < stop:
            time.sleep(0.05)
        if process.poll() is not None:
            break
        killed_at = time.time()
        saved = max([began, *(path.stat().st_mtime for path in out.glob("work/records/*.jsonl"))])
        process.kill()
        process.wait()
        costs.append({"after": round(killed_at - began, 1), "lost": round(killed_at - saved, 1), "taking up": 0.0})
        print(json.dumps(costs[-1]), file=sys.stderr, flush=True)
    if process.returncode:
        raise SystemExit("the command failed")
    if tables(out) != tables(whole):
        raise SystemExit(f"{out} differs")
    totals = [round(cost["lost"] + cost["taking up"], 1) for cost in costs]
    return {"kills": len(costs), "seconds": round(whole_seconds), "most": max(totals), "costs": sorted(totals)}


def main() -> None:
    """Kills as often as asked and reports."""
    how, kills, seed, base = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    base.mkdir(parents=True, exist_ok=True)
    if how in ("analyze", "report"):
        print(json.dumps(later(how, kills, seed, base)))
    elif how == "model":
        print(json.dumps(model(kills, seed, base, sys.argv[5:])))
    else:
        print(json.dumps((warm if how == "warm" else real)(kills, seed, base)))


if __name__ == "__main__":
    main()
