"""The stage that a run is at: `work/stage.json` says what there is to do; the driver writes it, workers read it."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from mnemoscope.atlas.manifest import WORK
from mnemoscope.foundation.files import read_object, write_json

TEXT, FINISHED = "mining", "finished"
"""The stage in which the text is read, and the one after the last."""
_STAGE = f"{WORK}/stage.json"


@dataclass(frozen=True)
class PublishedStage:
    """What there is to do: a stage and the number of its units; after the text, which states there are to merge."""

    name: str
    tasks: int
    inputs: tuple[str, ...] = ()
    """Files relative to the atlas."""

    def publish(self, directory: Path) -> None:
        """Tells all workers; raises StoreFailed."""
        write_json(directory / _STAGE, {**asdict(self), "inputs": list(self.inputs)})

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """What the driver published last; None where there is nothing, or the folder is gone."""
        said = read_object(directory / _STAGE)
        try:
            return cls(str(said["name"]), int(said["tasks"]), tuple(map(str, said["inputs"])))
        except (KeyError, TypeError, ValueError):
            return None
