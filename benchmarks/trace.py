"""How long a trace takes, beside the bare forward of its prompt: `python benchmarks/trace.py --before OTHER/src`.

A random model of GPT-2 small's shape on the CPU; prompts of 10, 20 and 30 tokens. With votes, as a server has them of
an atlas (made up here: what they are costs nothing), and as the first trace of a command line, which has none and
projects each memory that it shows. One thread, as a server leaves the model on two cores, and all. Each round measures
every case once, the forward next to its traces; printed are medians, and traces as multiples of the forward. `--before`
names another source folder, whose traces are measured in a process of its own, round by round in turn. A round takes
about a minute for each source.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

LENGTHS = (10, 20, 30)
KINDS = ("forward", "votes known", "no votes")


def answer() -> None:
    """Reads `length threads` lines; answers each with the seconds of the three kinds and a hash of the trace."""
    import hashlib

    import torch
    from speed.shapes import random_model

    from mnemoscope.tracing import trace
    from mnemoscope.tracing.scoring.scores import known_votes

    model = random_model("gpt2-small")
    words = "the model reads a word and then another one of the same kind until nothing is left to say about it all"
    text = " ".join([words] * 6)
    for line in sys.stdin:
        length, threads = map(int, line.split())
        torch.set_num_threads(threads)
        prompt = next(text[:end] for end in range(1, len(text)) if len(model.encode([text[:end]])[0]) == length)
        ids = torch.tensor([[*model.beginning.tokens, *model.encode([prompt])[0]]])
        seconds = []
        began = time.perf_counter()
        with torch.inference_mode():
            model.backbone(ids)
        seconds.append(time.perf_counter() - began)
        for has_votes in (True, False):
            for own in known_votes(model):
                own.copy_(torch.arange(len(own)) if has_votes else torch.tensor(-1))
            began = time.perf_counter()
            found = trace(model, prompt)
            seconds.append(time.perf_counter() - began)
        said = json.dumps(_shown(found.to_dict())).encode()
        print(json.dumps({"seconds": seconds, "hash": hashlib.sha256(said).hexdigest()}), flush=True)


def _shown(found: object) -> object:
    """A trace with its numbers to four digits, of which the last bits are no part."""
    if isinstance(found, float):
        return f"{found:.4g}"
    if isinstance(found, dict):
        return {name: _shown(one) for name, one in found.items()}
    return [_shown(one) for one in found] if isinstance(found, list | tuple) else found


def start(source: str | None) -> subprocess.Popen[str]:
    """A process that answers, of this source folder or the one in use."""
    environment = os.environ | ({} if source is None else {"PYTHONPATH": source})
    command = [sys.executable, __file__, "--answer"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def ask(process: subprocess.Popen[str], question: str) -> dict[str, object]:
    """One answer."""
    into, out = process.stdin, process.stdout
    assert into is not None
    assert out is not None
    into.write(question + "\n")
    into.flush()
    found: dict[str, object] = json.loads(out.readline())
    return found


def main() -> None:
    """Prints one line for each length and number of threads."""
    parser = argparse.ArgumentParser(description="How long a trace takes.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", help="another source folder to compare with")
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.answer:
        answer()
        return
    named = {"": start(None)} | ({"before: ": start(given.before)} if given.before else {})
    cases = [(length, threads) for threads in sorted({1, os.cpu_count() or 1}) for length in LENGTHS]
    for process in named.values():
        ask(process, f"{LENGTHS[-1]} {cases[-1][1]}")  # what a first trace loads
    seconds: dict[tuple[str, int, int], list[list[float]]] = {}
    hashes: dict[tuple[int, int], set[object]] = {}
    for _ in range(given.rounds):
        for case in cases:
            for name, process in named.items():
                found = ask(process, f"{case[0]} {case[1]}")
                seconds.setdefault((name, *case), []).append(found["seconds"])  # type: ignore[arg-type]
                hashes.setdefault(case, set()).add(found["hash"])
    for (name, length, threads), rounds in seconds.items():
        forward, *traces = (statistics.median(column) for column in zip(*rounds, strict=True))
        said = ", ".join(f"{kind} {s:.2f} s ({s / forward:.1f} x)" for kind, s in zip(KINDS[1:], traces, strict=True))
        print(f"{name}{length} tokens, {threads} threads: forward {1000 * forward:.0f} ms, {said}")
    if given.before:
        print("the same traces, to four digits" if all(len(one) == 1 for one in hashes.values()) else "TRACES DIFFER")
    for process in named.values():
        process.communicate()


if __name__ == "__main__":
    main()
