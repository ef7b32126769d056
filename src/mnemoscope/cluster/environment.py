"""What SLURM, torchrun and their like tell a worker that they began: its name, and its graphics card."""

import re
from collections.abc import Mapping


def worker_name_from_environment(environment: Mapping[str, str]) -> str | None:
    """What a worker is called that SLURM, torchrun or the like has begun; None where none of them has."""
    job = _number(environment, "SLURM_ARRAY_JOB_ID")
    task = _number(environment, "SLURM_ARRAY_TASK_ID")
    if task is not None:
        return f"slurm-{task}" if job is None else f"slurm-{job}-{task}"
    rank = _number(environment, "RANK")
    return None if rank is None else f"rank-{rank}"


def card_from_environment(environment: Mapping[str, str]) -> int | None:
    """Which of a machine's cards is a worker's own, where torchrun or srun began several there; None: they do not say.

    Not where the worker sees its own cards alone.
    """
    if environment.get("CUDA_VISIBLE_DEVICES", "").count(",") == 0 and "CUDA_VISIBLE_DEVICES" in environment:
        return None
    rank = _number(environment, "LOCAL_RANK")
    return _number(environment, "SLURM_LOCALID") if rank is None else rank


def _number(environment: Mapping[str, str], name: str) -> int | None:
    value = environment.get(name, "")
    return int(value) if re.fullmatch("[0-9]+", value) else None
