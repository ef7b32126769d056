"""`mine` with workers, `worker` and `status`: what the options mean, and what is said."""

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from mnemoscope.cli import main
from mnemoscope.cli.app import name_ray
from mnemoscope.cluster import run
from mnemoscope.cluster.status import run_status
from mnemoscope.foundation.options.fleet_options import FleetOptions
from mnemoscope.foundation.progress import fleet_note
from mnemoscope.mining import text_pass

Capture = pytest.CaptureFixture[str]
NAMED = (" auto", " head:6379 --json", " ray://10.0.0.1:10001", " [::1]:6379", "=head:6379")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("mine m t --ray", "mine m t --ray local"),
        ("mine --ray m t", "mine --ray local m t"),
        ("mine m t --ray --json", "mine m t --ray local --json"),
        *((f"mine m t --ray{named}", f"mine m t --ray{named}") for named in NAMED),
    ],
)
def test_an_address_is_known_from_a_model_or_a_text(words: str, expected: str) -> None:
    assert name_ray(words.split()) == expected.split()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the room is asked for, which then says that it was stopped."""
    calls: list[Any] = []

    def fake(model: str, corpus: str, out: Path, options: Any, fleet: Any, *, progress: Any) -> Path:
        from mnemoscope.errors import MiningError

        calls.append((model, corpus, fleet))
        progress("mining", 1, 10, fleet_note("tokens", workers=2, leases_lost=1))
        raise MiningError("no worker is left")

    monkeypatch.setattr(run, "mine_with_workers", fake)
    return calls


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--workers 2", {"workers": "2"}),
        ("--workers auto", {"workers": "auto"}),
        ("--ray", {"ray": "local"}),
        ("--ray head:6379 --workers 8 --gpus-per-worker 2", {"ray": "head:6379", "workers": "8", "gpus_per_worker": 2}),
        ("--workers 2 --allow-mixed-devices", {"workers": "2", "allow_mixed_devices": True}),
    ],
)
def test_workers_are_asked_for(words: str, expected: dict[str, Any], asked: list[Any], tmp_path: Path) -> None:
    assert main(["mine", "m", "hub:t", "--out", str(tmp_path / "a"), *words.split()]) == 2
    assert asked == [("m", "hub:t", FleetOptions(**expected))]


def test_more_workers_than_cores_are_warned_of(asked: list[Any], tmp_path: Path, capsys: Capture) -> None:
    assert main(["mine", "m", "hub:t", "--out", str(tmp_path / "a"), "--workers", "999"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("warning: 999 workers share ")
    assert (said[-1], asked[0][2].count) == ("mnemoscope: no worker is left", 999)


def test_machines_read_events(asked: list[Any], tmp_path: Path, capsys: Capture) -> None:
    assert main(["mine", "m", "hub:t", "--out", str(tmp_path / "a"), "--workers", "2", "--json"]) == 2
    printed, said = capsys.readouterr()
    assert json.loads(printed)["message"] == "no worker is left"
    event = json.loads(said.splitlines()[0])
    assert (event["event"], event["stage"], event["done"], event["total"]) == ("progress", "mining", 1, 10)
    assert (event["unit"], event["workers"], event["leases_lost"]) == ("tokens", 2, 1)


def test_the_jobs_of_slurm_are_printed(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "an atlas"
    words = ["mine", "m", "t.txt", "--out", str(out), "--launch", "slurm", "--print", "--workers", "7", "--seed", "3"]
    assert main([*words, "--adapter", "my lora", "--device", "cuda"]) == 0
    printed = capsys.readouterr().out
    assert "#SBATCH --array=0-6" in printed
    assert printed.count("#SBATCH --gres=gpu:1") == 3
    assert f"mine m t.txt --out '{out}' --seed 3 --adapter 'my lora' --device cuda --prepare" in printed
    assert f"worker '{out}' --text-only --adapter 'my lora'" in printed
    assert not out.exists()


def test_status_of_nothing_and_of_an_atlas(tmp_path: Path, capsys: Capture) -> None:
    assert main(["status", str(tmp_path)]) == 2
    assert "holds no run and no atlas" in capsys.readouterr().err
    (tmp_path / "zen.txt").write_text("the cat sat on the mat\na dog ran home\nthe red fox slept\n")
    atlas = str(tmp_path / "zen")
    assert main(["mine", "handmade:planted", str(tmp_path / "zen.txt"), "--split", "line", "--out", atlas]) == 0
    assert not (tmp_path / "zen/work").exists()
    capsys.readouterr()
    assert main(["status", atlas, "--json"]) == 0
    nothing = dict.fromkeys(("batches", "done", "leases_lost", "tokens_per_second", "seconds_left"), 0)
    assert json.loads(capsys.readouterr().out) == {"state": "finished", "workers": [], **nothing}
    assert main(["status", atlas]) == 0
    assert capsys.readouterr().out == f"{atlas}: finished\n"


def test_status_of_a_run_of_one_process(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "zen.txt").write_text("the cat sat on the mat\na dog ran home\nthe red fox slept\n" * 30)
    seen: list[Any] = []
    real = text_pass.TextReader.take

    def take(self: Any, number: int) -> int:
        seen.append(run_status(tmp_path / "zen"))
        return real(self, number)

    monkeypatch.setattr(text_pass.TextReader, "take", take)
    words = ["--split", "line", "--out", str(tmp_path / "zen"), "--batch-tokens", "16", "--prefixes", "0"]
    assert main(["mine", "handmade:planted", str(tmp_path / "zen.txt"), *words]) == 0
    capsys.readouterr()
    assert {status.state for status in seen} == {"mining"}
    assert {status.batches for status in seen} == {len(seen)}
    assert [(worker.name, worker.alive) for worker in seen[-1].workers] == [("single-process", True)]


def test_status_of_a_stopped_run_says_the_command_that_goes_on_with_it(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    atlas, text = tmp_path / "my atlas", tmp_path / "zen.txt"
    text.write_text("the cat sat on the mat\na dog ran home\nthe red fox slept\n" * 30)

    def stop(self: Any, number: int) -> int:
        raise KeyboardInterrupt

    words = ["--split", "line", "--batch-tokens", "16", "--prefixes", "0", "--triggers", "7", "--layers", "1"]
    with monkeypatch.context() as patch:
        patch.setattr(text_pass.TextReader, "take", stop)
        assert main(["mine", "handmade:planted", str(text), "--out", str(atlas), *words]) == 130
    capsys.readouterr()
    assert main(["status", str(atlas)]) == 0
    said = capsys.readouterr().out
    command = said.partition("to go on: mnemoscope ")[2]
    assert f"mine handmade:planted {text} --out '{atlas}' --split line --triggers 7" in command
    assert main(shlex.split(command)) == 0
    capsys.readouterr()
    assert main(["status", str(atlas)]) == 0
    assert capsys.readouterr().out == f"{atlas}: finished\n"
    (atlas / "patterns.parquet").unlink()
    assert main(["status", str(atlas)]) == 0
    assert f"to go on: mnemoscope analyze '{atlas}' --patterns" in capsys.readouterr().out


@pytest.mark.parametrize(("stated", "threads"), [("4,2", 4), ("3", 3), ("0", None), ("many", None), ("", None)])
def test_jobs_of_slurm_have_the_threads_of_the_outer_level(
    stated: str,
    threads: int | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", stated)
    words = ["mine", "builtin:pydocs", "t.txt", "--out", str(tmp_path / "a"), "--launch", "slurm", "--print"]
    monkeypatch.setattr("sys.argv", ["mnemoscope", *words])
    assert main(words) == 0
    wanted = threads or min(8, len(os.sched_getaffinity(0)))
    assert f"--cpus-per-task={wanted}\n" in capsys.readouterr().out
