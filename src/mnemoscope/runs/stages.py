"""A stage of a run: what its units are, and who can do them. Which stage is on stands in `work/stage.json`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mnemoscope.atlas.manifest import WORK
from mnemoscope.foundation.files import json_bytes, make_folder, read_object, storing

if TYPE_CHECKING:
    from mnemoscope.runs.run import Run
    from mnemoscope.runs.workers.worker import Worker

TEXT, FINISHED = "mining", "finished"
"""The stage in which the model reads the text, and the one after the last."""
STAGE = f"{WORK}/stage.json"


@dataclass(frozen=True)
class Stage:
    """`make(worker, unit)` does one unit: a layer, the number of a piece, or 0. The units of a stage are independent:
    each writes whole files and changes none of another unit, so they may be done in any order, in any process, and
    twice. Of the `text` every worker counts batches in a state of its own (`make`), and `collect` says whether the
    states count all.
    """

    name: str
    unit: Literal["text", "run", "layer", "piece"]
    make: "Callable[[Worker, int], None]"
    table: str | None = None
    """The optional table that it helps to make."""
    needs_all: bool = True
    """Whether it needs the triggers of the whole text, which a part lacks."""
    needs_model: bool = True
    mined: Literal["always", "asked", "never"] = "always"
    """Whether mining does it: `asked` where the plan has its table's name as a field, `never` by `extend` only."""
    count_pieces: "Callable[[Worker], int] | None" = None
    """By a worker, since a pass plans its pieces with the model."""
    joined: str = ""
    """The stage that joins the pieces, after which they are not needed."""
    collect: "Callable[[Run], bool] | None" = None

    def count(self, worker: "Worker") -> int:
        """How many units there are."""
        if self.count_pieces is not None:
            return self.count_pieces(worker)
        return len(worker.plan.layers) if self.unit == "layer" else 1


def publish(directory: Path, stage: str, *, turn: int = 0) -> None:
    """Says which stage is on, again if some of it turned out not to be done (`turn`). Not flushed to the disk: after a
    power cut no worker is alive.
    """
    path = directory / STAGE
    make_folder(path.parent)
    temporary = path.parent / f".{path.name}.mnemoscope-tmp"
    with storing(path):
        temporary.write_bytes(json_bytes({"name": stage, "turn": turn}))
        temporary.replace(path)


def published_stage(directory: Path) -> tuple[str, int] | None:
    """The last stage published, and its turn; None if there is none, or the folder is gone."""
    said = read_object(directory / STAGE)
    return (str(said["name"]), int(said["turn"])) if said.keys() == {"name", "turn"} else None
