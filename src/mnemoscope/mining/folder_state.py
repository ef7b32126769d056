"""What a run finds in its folder, decided once: nothing, its own work, a finished atlas, or work begun otherwise.

Only looks; the run and the merge do what follows from the state. Called once the folder is locked, so that nobody else
changes it meanwhile.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

from mnemoscope.atlas.folder import occupancy
from mnemoscope.atlas.manifest import unfinished_plan
from mnemoscope.atlas.store import storing
from mnemoscope.errors import AtlasExists, PlanDiffers
from mnemoscope.mining.plan import MiningPlan


class FolderState(Enum):
    """The four things that a folder can be to a run."""

    FRESH = auto()
    """Nothing of an atlas lies there."""
    GOES_ON = auto()
    """An earlier run of the same plan and part was stopped there."""
    REPLACES = auto()
    """A finished atlas lies there, to be replaced."""
    BEGUN_OTHERWISE = auto()
    """A run of another plan or part was stopped there."""


@dataclass(frozen=True)
class FoundFolder:
    """The state of a folder; `begun` is what the stopped run said of itself, `differs` how it was begun otherwise."""

    state: FolderState
    begun: Mapping[str, Any] | None = None
    differs: PlanDiffers | None = None


def look_into(directory: Path, plan: MiningPlan, *, part: list[int] | None, otherwise: str) -> FoundFolder:
    """What the folder is to a run of this plan and part; `otherwise` is the way out where another part was begun."""
    begun = unfinished_plan(directory)
    if begun is None:
        return FoundFolder(FolderState.REPLACES if occupancy(directory) == "finished" else FolderState.FRESH)
    if (differs := difference(plan, begun, directory, part=part, otherwise=otherwise)) is not None:
        return FoundFolder(FolderState.BEGUN_OTHERWISE, begun, differs)
    return FoundFolder(FolderState.GOES_ON, begun)


def difference(
    plan: MiningPlan, begun: Mapping[str, Any], directory: Path, *, part: list[int] | None, otherwise: str
) -> PlanDiffers | None:
    """How what was begun in the folder differs from this plan and part, as an error; None where it is the same."""
    try:
        plan.check_same(begun["plan"], directory)
    except PlanDiffers as error:
        return error
    if begun["part"] != part:
        return PlanDiffers(f"{directory} was begun as part {begun['part']}{otherwise}")
    return None


def check_writable(directory: Path, *, force: bool, advice: Callable[[], str]) -> None:
    """Raises AtlasExists for a folder of something else and, without `force`, for a finished atlas.

    `advice` is what the error says of a finished one after the folder's name.
    """
    with storing(directory):
        found = occupancy(directory)
    if found == "foreign":
        raise AtlasExists(f"{directory} holds something that is not an atlas; choose another folder")
    if found == "finished" and not force:
        raise AtlasExists(f"{directory} is finished already{advice()}")
