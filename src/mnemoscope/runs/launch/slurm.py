"""A run on a SLURM cluster: three jobs, each of which begins when the one before has ended.

The first prepares text and plan, the tasks of the second, an array, are the workers, the last does what is left, merges
and seals. SIGUSR1 warns a job before its time limit: it saves, ends with 75 and is requeued. Partition, account and
time limit are set with sbatch's variables (`SBATCH_PARTITION` and the like) or in the printed script. This file makes
and submits scripts.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from mnemoscope.errors import OptionError, Terminated
from mnemoscope.foundation.files import make_folder

WORKERS = 4
"""Default number of tasks of the array."""
_NOTICE = 120
"""Seconds before its time limit at which a job is warned."""
_FLAGS, _VALUED = ("--print", "--json"), ("--launch", "--workers", "--gpus-per-worker")
"""Options of `mine` for launching, which jobs must not get."""


@dataclass(frozen=True)
class SlurmJob:
    role: str
    """`prepare`, `work` or `finish`."""
    purpose: str
    script: str
    log: str
    """The value of sbatch's --output."""
    after: Mapping[str, str] = field(default_factory=dict)
    """The roles of the jobs it waits for, with `afterok` or `afterany`."""

    def arguments(self, ids: Mapping[str, str]) -> list[str]:
        """Sbatch's arguments beside the script; `ids` are the numbers of earlier jobs by role."""
        words = ["--parsable", f"--output={self.log}"]
        if self.after:
            needed = ",".join(f"{how}:{ids[role]}" for role, how in self.after.items())
            words += [f"--dependency={needed}", "--kill-on-invalid-dep=yes"]
        return words


def scripts(
    command: Sequence[str],
    atlas: Path,
    *,
    workers: int = WORKERS,
    threads: int,
    gpus: int = 0,
    worker_options: Sequence[str] = (),
    program: Sequence[str] = (sys.executable, "-m", "mnemoscope"),
    directory: Path | None = None,
) -> list[SlurmJob]:
    """The three jobs of `command`, the words of `mine MODEL CORPUS --out ATLAS ...` from `mine` on, without launch
    options. Every job gets `threads` cores and `gpus` cards, every worker `worker_options`. Jobs run in `directory`, by
    default the current one.
    """
    if workers < 1 or threads < 1 or gpus < 0:
        raise OptionError(f"{workers} workers of {threads} threads and {gpus} cards are impossible; ask for 1 or more")
    mine = without_launch_options(command)
    lead = ["#SBATCH --ntasks=1", f"#SBATCH --cpus-per-task={threads}"]
    lead += [f"#SBATCH --gres=gpu:{gpus}"] if gpus else []
    place = Path.cwd() if directory is None else directory
    logs = str(log_folder(place / atlas)).replace("%", "%%")  # sbatch reads % as a job's number

    def job(role: str, purpose: str, words: Sequence[str], after: Mapping[str, str], array: str = "") -> SlurmJob:
        head = [f"#SBATCH --job-name=mnemoscope-{role}", *([f"#SBATCH --array={array}"] if array else []), *lead]
        return SlurmJob(
            role,
            purpose,
            _SCRIPT.format(
                head="\n".join(head),
                notice=_NOTICE,
                directory=quote(str(place)),
                threads=threads,
                command=" ".join(map(quote, [*program, *words])),
                again=Terminated.exit_code,
            ),
            f"{logs}/{role}-{'%A_%a' if array else '%j'}.log",
            after,
        )

    # What is forced is forced once: the jobs after the first go on with what that one began.
    rest = [word for word in mine if word != "--force"]
    several = ["--gpus-per-worker", str(gpus)] if gpus > 1 else []
    return [
        job("prepare", "reads the text and writes the plan", [*mine, "--prepare"], {}),
        job(
            "work",
            "the workers run the model over the text",
            ["worker", str(atlas), "--text-only", *worker_options],
            {"prepare": "afterok"},
            array=f"0-{workers - 1}",
        ),
        job(
            "finish",
            "does what the workers have left, merges and seals",
            [*rest, "--workers", "auto", *several],
            {"prepare": "afterok", "work": "afterany"},
        ),
    ]


_SCRIPT = """\
#!/bin/bash
{head}
#SBATCH --signal=B:USR1@{notice}
#SBATCH --requeue
#SBATCH --open-mode=append
cd -- {directory} || exit 2
export OMP_NUM_THREADS={threads} MKL_NUM_THREADS={threads}

caught=yes again= ended= running=
# SIGUSR1: the time is nearly up. SIGTERM: SLURM ends this job, and puts it back by itself where it should.
trap 'caught=yes again=yes; kill -USR1 "$running" 2> /dev/null' USR1
trap 'caught=yes ended=yes; kill -USR1 "$running" 2> /dev/null' TERM
{command} &
running=$!
[ -z "$again$ended" ] || kill -USR1 "$running"
while [ -n "$caught" ]; do  # a signal ends `wait`, too
  caught=
  wait "$running"
  code=$?
done
if [ "$code" -eq {again} ] && [ -n "$again" ] && [ -z "$ended" ]; then  # saved; goes on from there
  task=${{SLURM_ARRAY_TASK_ID:+${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}}}
  scontrol requeue "${{task:-$SLURM_JOB_ID}}" || echo "mnemoscope: this job could not be put back into the queue" >&2
fi
exit "$code"
"""


def without_launch_options(command: Sequence[str]) -> list[str]:
    """The words of a `mine` command without launch options."""
    kept: list[str] = []
    words = iter(command)
    for word in words:
        if word == "--":
            return [*kept, word, *words]
        if word in _VALUED:
            next(words, None)
        elif word not in _FLAGS and word.split("=")[0] not in _VALUED:
            kept.append(word)
    return kept


def log_folder(atlas: Path) -> Path:
    return atlas.parent / f"{atlas.name}.slurm"


def document(jobs: Sequence[SlurmJob]) -> str:
    parts = [_HEAD.format(logs=quote(_folder_of(jobs)))]
    for number, job in enumerate(jobs, 1):
        words = job.arguments({role: f"${role}" for role in job.after})
        # The numbers of earlier jobs are variables of the shell; everything else is quoted.
        given = " ".join(f'"{word}"' if word.startswith("--dependency=") else quote(word) for word in words)
        parts.append(
            f"\n# {number}. {job.role}: {job.purpose}.\n"
            f"{job.role}=$(sbatch {given} <<'END_OF_JOB'\n{job.script}END_OF_JOB\n)\n"
            f"{job.role}=${{{job.role}%%;*}}  # a cluster's name may follow\n"
        )
    numbers = ", ".join(f"{job.role} $" + job.role for job in jobs)
    parts.append(f'\necho "submitted: {numbers}; squeue --me shows them"\n')
    return "".join(parts)


_HEAD = """\
#!/bin/bash
# Submits three SLURM jobs that mine one atlas; made by mnemoscope mine --launch slurm --print.
# Partition, account, time: export SBATCH_PARTITION, SBATCH_ACCOUNT, SBATCH_TIMELIMIT, or add #SBATCH lines to the jobs.
set -euo pipefail
mkdir -p -- {logs}
"""


def submit(jobs: Sequence[SlurmJob]) -> list[str]:
    """Submits the jobs and returns their numbers; cancels them if sbatch refuses one."""
    make_folder(Path(_folder_of(jobs)))
    ids: dict[str, str] = {}
    for job in jobs:
        try:
            ids[job.role] = _submit_one(job, ids)
        except OptionError as error:
            raise OptionError(f"{error}{_cancel(list(ids.values()))}") from None
    return list(ids.values())


def _submit_one(job: SlurmJob, ids: Mapping[str, str]) -> str:
    command = ["sbatch", *job.arguments(ids)]
    try:
        done = subprocess.run(command, input=os.fsencode(job.script), capture_output=True, check=False)
    except OSError as error:
        raise OptionError(
            f"cannot run sbatch ({error.strerror}); use a login node of a SLURM cluster, or add --print and run there"
            " what it prints"
        ) from None
    said = done.stdout.decode(errors="replace").strip()
    number = re.fullmatch(r"([0-9]+)(;.*)?", said.splitlines()[-1]) if said else None
    if done.returncode == 0 and number is not None:
        return number[1]
    lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    reason = "; ".join(line.removeprefix("sbatch: ").removeprefix("error: ") for line in lines[-2:])
    why = reason or (f"it ended with code {done.returncode}" if done.returncode else f"it gave {said!r}, not a number")
    raise OptionError(f"sbatch did not accept the job mnemoscope-{job.role}: {why}")


def _cancel(ids: Sequence[str]) -> str:
    """Cancels jobs whose successor was refused; returns the result as a clause."""
    if not ids:
        return ""
    with suppress(OSError):
        if subprocess.run(["scancel", *ids], capture_output=True, check=False).returncode == 0:
            return f"; the jobs submitted before it ({', '.join(ids)}) are cancelled"
    return f"; the jobs submitted before it still wait; cancel them with scancel {' '.join(ids)}"


def quote(word: str) -> str:
    """The word for bash, on one line."""
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(chr(b) if 32 < b < 127 and b not in b"'\\" else f"\\{b:03o}" for b in os.fsencode(word)) + "'"


def _folder_of(jobs: Sequence[SlurmJob]) -> str:
    return os.path.dirname(jobs[0].log).replace("%%", "%")
