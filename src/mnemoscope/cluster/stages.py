"""The current stage of a run, which the driver writes to `work/stage.json` and workers read."""

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
    """A stage, and after the text the states to merge."""

    name: str
    inputs: tuple[str, ...] = ()
    """Relative to the atlas."""

    def publish(self, directory: Path) -> None:
        """Raises StoreFailed."""
        write_json(directory / _STAGE, {**asdict(self), "inputs": list(self.inputs)})

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """The last stage published; None if there is none, or the folder is gone."""
        said = read_object(directory / _STAGE)
        try:
            return cls(str(said["name"]), tuple(map(str, said["inputs"])))
        except (KeyError, TypeError, ValueError):
            return None
