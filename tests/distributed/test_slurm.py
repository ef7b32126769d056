"""`mine --launch slurm` against stand-ins for sbatch, scontrol and scancel, which note what they are told."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from mnemoscope.errors import OptionError
from mnemoscope.runs.launch import slurm
from mnemoscope.runs.workers.joining import card_from_environment, worker_name_from_environment

MINE = ["mine", "gpt2", "wiki.txt", "--out", "atlas", "--triggers", "20"]
ODD = ["it's", "a b", "$(touch boom)", "`x`", '"', "*", "--", "é\n\t", "50%\\", "END_OF_JOB"]

SBATCH = f"""#!{sys.executable}
import json, os, pathlib, re, shlex, subprocess, sys
notes = pathlib.Path(__file__).with_name("notes")
job = 100 + len(list(notes.iterdir()))
script = sys.stdin.read()
(notes / f"{{job}}.json").write_text(json.dumps([sys.argv[1:], script]))
if job >= int(os.environ.get("REFUSED", 1000)):
    sys.exit("sbatch: error: Batch job submission failed: Invalid account or account/partition combination")
print(f"{{job}};little")
if "RUN_THEM" in os.environ:
    tasks = re.search(r"--array=0-(\\d+)", script)
    for task in range(int(tasks[1]) + 1) if tasks else [None]:
        own = {{"SLURM_JOB_ID": str(job)}}
        if task is not None:
            own |= {{"SLURM_ARRAY_JOB_ID": str(job), "SLURM_ARRAY_TASK_ID": str(task)}}
            own |= {{"SLURM_ARRAY_TASK_COUNT": str(int(tasks[1]) + 1)}}
        subprocess.run(["bash", "-s"], input=script.encode(), env={{**os.environ, **own}}, stdout=2)
"""
SCONTROL = """#!/bin/bash
echo "$*" >> "$(dirname "$0")/scontrol.txt"
"""
SCANCEL = """#!/bin/bash
echo "$*" >> "$(dirname "$0")/scancel.txt"
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the PATH with the stand-ins, and their notes in it; the working directory lies beside it."""
    folder, here = tmp_path / "bin", tmp_path / "here"
    (folder / "notes").mkdir(parents=True)
    here.mkdir()
    for name, text in (("sbatch", SBATCH), ("scontrol", SCONTROL), ("scancel", SCANCEL)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(here)
    return folder


def made(command: Sequence[str] = MINE, atlas: str = "atlas", **options: Any) -> list[slurm.SlurmJob]:
    return slurm.scripts(command, Path(atlas), **{"workers": 3, "threads": 2, **options})


def read_note(cluster: Path) -> list[tuple[list[str], str]]:
    """What sbatch was given, in order: its arguments and the script."""
    return [tuple(json.loads(path.read_text())) for path in sorted((cluster / "notes").iterdir())]


def directives(script: str) -> set[str]:
    return {line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH")}


def run_command(script: str) -> list[str]:
    """The words of the command that a job runs."""
    (line,) = [line for line in script.splitlines() if line.endswith(" &")]
    return shlex.split(line.removesuffix(" &"))


def test_cards_threads_and_options_of_workers() -> None:
    jobs = made(gpus=2, threads=6, worker_options=["--max-memory", "2GiB"], program=["mnemoscope"])
    for job in jobs:
        assert {"--gres=gpu:2", "--cpus-per-task=6"} <= directives(job.script)
        assert "export OMP_NUM_THREADS=6 MKL_NUM_THREADS=6" in job.script
    assert run_command(jobs[1].script) == ["mnemoscope", "worker", "atlas", "--text-only", "--max-memory", "2GiB"]
    with pytest.raises(OptionError, match="ask for 1 or more"):
        made(workers=0)


def test_the_jobs_do_not_launch_and_only_the_first_one_forces() -> None:
    launched = [*MINE, "--launch", "slurm", "--workers=7", "--print", "--json", "--gpus-per-worker", "2", "--force"]
    assert slurm.without_launch_options(launched) == [*MINE, "--force"]
    assert slurm.without_launch_options(["mine", "--", "--print"]) == ["mine", "--", "--print"]
    prepare, work, finish = (run_command(job.script)[3:] for job in made(launched, gpus=2))
    assert (prepare, work) == ([*MINE, "--force", "--prepare"], ["worker", "atlas", "--text-only"])
    assert finish == [*MINE, "--workers", "auto", "--gpus-per-worker", "2"]


PROBE = "import json, os, sys; print(json.dumps([sys.argv[1:], os.getcwd(), os.environ['OMP_NUM_THREADS']]))"


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_odd_names_arrive_as_they_are(cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways: submitted, and printed, then run by bash; the stand-in runs every script, in order."""
    place = tmp_path / "it's $HOME\n%j"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setenv("RUN_THEM", "1")
    said = tmp_path / "said"
    program = ["bash", "-c", '"$0" "$@" >> "$SAID"', sys.executable, "-c", PROBE]
    monkeypatch.setenv("SAID", str(said))
    jobs = made(["mine", *ODD], atlas="an 'atlas'", workers=2, program=program)
    worker = ["worker", "an 'atlas'", "--text-only"]
    commands = [["mine", *ODD, "--prepare"], worker, worker, ["mine", *ODD, "--workers", "auto"]]
    assert slurm.submit(jobs) == ["100", "101", "102"]
    assert lines_of(said) == [[command, str(place), "2"] for command in commands]
    said.unlink()
    monkeypatch.chdir(tmp_path)
    ran = subprocess.run(["bash"], input=slurm.document(jobs), text=True, capture_output=True, check=True)
    assert lines_of(said) == [[command, str(place), "2"] for command in commands]
    assert ran.stdout == "submitted: prepare 103, work 104, finish 105; squeue --me shows them\n"

    def later(word: str) -> str:
        """The word with the numbers of the jobs that were submitted later; a folder may have such a number, too."""
        return word.replace("100", "103").replace("101", "104") if word.startswith("--dependency=") else word

    assert [arguments for arguments, _ in read_note(cluster)[3:]] == [
        [later(word) for word in arguments] for arguments, _ in read_note(cluster)[:3]
    ]
    assert [path.name for path in place.iterdir()] == ["an 'atlas'.slurm"]
    assert not list(tmp_path.rglob("boom"))


def test_what_is_printed_is_bash_in_lines_that_can_be_read() -> None:
    text = slurm.document(made(directory=Path("/data/me"), program=["mnemoscope"]))
    assert subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=True).stderr == ""
    for job in made(["mine", *ODD]):
        assert subprocess.run(["bash", "-n"], input=job.script, text=True, capture_output=True, check=True).stderr == ""
    assert text.replace("\n", "").isprintable()
    assert slurm.document(made(["mine", *ODD])).replace("\n", "").isprintable()
    assert text == (Path(__file__).parent / "slurm.sh").read_text()


def refusal(jobs: list[slurm.SlurmJob]) -> str:
    with pytest.raises(OptionError) as refused:
        slurm.submit(jobs)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_what_sbatch_says_is_passed_on(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    why = "Batch job submission failed: Invalid account or account/partition combination"
    monkeypatch.setenv("REFUSED", "100")
    did_not_take = "sbatch did not accept the job mnemoscope"
    assert refusal(made()) == f"{did_not_take}-prepare: {why}"
    assert not (cluster / "scancel.txt").exists()
    monkeypatch.setenv("REFUSED", "103")
    said = refusal(made())
    assert said == f"{did_not_take}-finish: {why}; the jobs submitted before it (101, 102) are cancelled"
    assert (cluster / "scancel.txt").read_text() == "101 102\n"
    (cluster / "scancel").unlink()
    monkeypatch.setenv("REFUSED", "105")
    assert refusal(made()).endswith("; the jobs submitted before it still wait; cancel them with scancel 104")


def test_sbatch_that_says_no_number(cluster: Path) -> None:
    (cluster / "sbatch").write_text("#!/bin/bash\necho queued\n")
    assert refusal(made()) == "sbatch did not accept the job mnemoscope-prepare: it gave 'queued', not a number"
    (cluster / "sbatch").write_text("#!/bin/bash\nexit 3\n")
    assert refusal(made()) == "sbatch did not accept the job mnemoscope-prepare: it ended with code 3"


def test_where_there_is_no_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    said = refusal(made())
    assert said.startswith("cannot run sbatch (No such file or directory); use a login node of a SLURM cluster")


MINED = """import os, signal, sys, time
def save(number, frame):
    print("saving", number == signal.SIGUSR1, flush=True)
    time.sleep(0.2)
    sys.exit({code})
signal.signal(signal.SIGUSR1, save)
signal.signal(signal.SIGTERM, lambda *_: print("told", flush=True))
print("running", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("sent", "ends_with", "requeued"), [("USR1", 75, True), ("TERM", 75, False), ("USR1", 2, False)]
)
@pytest.mark.parametrize("array", [True, False])
def test_a_job_whose_time_is_up_saves_and_goes_back(
    sent: str, ends_with: int, requeued: bool, array: bool, cluster: Path
) -> None:
    """SLURM sends SIGUSR1 to the shell of the script alone; SIGTERM ends a job for good, or SLURM puts it back."""
    job = made(program=[sys.executable, "-c", MINED.format(code=ends_with)])[1 if array else 0]
    own = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"} if array else {}
    environment = {**os.environ, "SLURM_JOB_ID": "9", **own}
    path = cluster / "job.sh"
    path.write_text(job.script)
    with subprocess.Popen(["bash", str(path)], stdout=subprocess.PIPE, text=True, env=environment) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == "running\n"
        shell.send_signal(getattr(signal, f"SIG{sent}"))
        assert shell.stdout.read() == "saving True\n"
    assert shell.returncode == ends_with
    told = (cluster / "scontrol.txt").read_text() if (cluster / "scontrol.txt").exists() else ""
    assert told == ((f"requeue {'7_2' if array else '9'}\n") if requeued else "")


@pytest.mark.parametrize(
    ("environment", "name", "card"),
    [
        ({}, None, None),
        ({"SLURM_ARRAY_TASK_ID": "3"}, "slurm-3", None),
        ({"SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "3", "SLURM_LOCALID": "0"}, "slurm-77-3", 0),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, "rank-5", 1),
        ({"RANK": "5", "LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "1"}, "rank-5", None),
        ({"RANK": "5", "LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "0,1"}, "rank-5", 1),
        ({"RANK": "five", "LOCAL_RANK": ""}, None, None),
    ],
)
def test_workers_find_their_place(environment: Mapping[str, str], name: str | None, card: int | None) -> None:
    assert worker_name_from_environment(environment) == name
    assert card_from_environment(environment) == card


def test_logs_lie_beside_the_atlas() -> None:
    assert slurm.log_folder(Path("runs/wiki")) == Path("runs/wiki.slurm")
    assert made(atlas="50%", directory=Path("/d"))[0].log == "/d/50%%.slurm/prepare-%j.log"
    assert slurm.quote("a\x1b'b") == "$'a\\033\\047b'"
