"""The name and the card of a worker that SLURM, torchrun or the like has started."""

import re
from collections.abc import Mapping


def worker_name_from_environment(environment: Mapping[str, str]) -> str | None:
    """None if none of them has started it."""
    job = _number(environment, "SLURM_ARRAY_JOB_ID")
    task = _number(environment, "SLURM_ARRAY_TASK_ID")
    if task is not None:
        return f"slurm-{task}" if job is None else f"slurm-{job}-{task}"
    rank = _number(environment, "RANK")
    return None if rank is None else f"rank-{rank}"


def card_from_environment(environment: Mapping[str, str]) -> int | None:
    """The worker's own card on a machine with several workers; None if unknown, or if no other is visible."""
    if environment.get("CUDA_VISIBLE_DEVICES", "").count(",") == 0 and "CUDA_VISIBLE_DEVICES" in environment:
        return None
    rank = _number(environment, "LOCAL_RANK")
    return _number(environment, "SLURM_LOCALID") if rank is None else rank


def _number(environment: Mapping[str, str], name: str) -> int | None:
    value = environment.get(name, "")
    return int(value) if re.fullmatch("[0-9]+", value) else None
