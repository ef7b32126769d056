"""What a pass over a text accumulates: four collectors a layer; saved, loaded, added up. Its size depends on the model
and the plan, not on the text.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from mnemoscope.errors import AtlasDamaged, PartsDiffer
from mnemoscope.foundation.files import write_bytes
from mnemoscope.foundation.memory_names import Numbering
from mnemoscope.kernels.devices import join_names, split_names
from mnemoscope.mining.text.activity import Activity, Routing
from mnemoscope.mining.text.measures import Collector
from mnemoscope.mining.text.random_firings import RandomFirings
from mnemoscope.mining.text.ranges import Range, join_ranges, shared_ranges
from mnemoscope.mining.text.triggers import Triggers
from mnemoscope.models import LanguageModel


@dataclass(frozen=True)
class StateShape:
    """The memories of each mined layer, the number of triggers kept, the signs (+1, and -1 where coefficients can be
    negative), the numberings of layers with experts, and the seed by which firings are drawn at `random` (None: they
    are not), beside all else or `alone`.
    """

    memories: dict[int, int]
    keep: int
    signs: tuple[int, ...]
    experts: dict[int, Numbering] = field(default_factory=dict)
    random: int | None = None
    alone: bool = False

    @classmethod
    def of(
        cls,
        model: LanguageModel,
        *,
        keep: int,
        layers: Sequence[int] | None = None,
        random: int | None = None,
        alone: bool = False,
    ) -> "StateShape":
        """`layers` None: all layers."""
        mined = range(model.sizes.layers) if layers is None else layers
        numberings = {layer: model.numbering(layer) for layer in mined}
        experts = {layer: numbering for layer, numbering in numberings.items() if numbering.routed is not None}
        memories = {layer: each.count for layer, each in numberings.items()}
        return cls(memories, keep, model.signs, experts, random, alone)


@dataclass(frozen=True)
class StateFacts:
    """The header of a saved state, read without its tensors."""

    plan: str
    finished: list[Range]
    """The batches counted, by number in the order of the plan."""
    device: str
    """The name of the device that computed it; empty if unknown."""
    halved: list[int]

    @classmethod
    def read(cls, path: Path) -> "StateFacts":
        """Raises FileNotFoundError, AtlasDamaged."""
        with _open_state(path, needed=False) as (_, facts):
            return facts


@contextmanager
def _open_state(path: Path, *, needed: bool = True) -> Iterator[tuple[Any, StateFacts]]:
    """A saved state and its header. Errors in the block become AtlasDamaged, and a missing file too, if `needed`."""
    try:
        with safe_open(path, "pt") as file:
            facts = StateFacts(**json.loads((file.metadata() or {})["state"]))
            yield file, replace(facts, finished=[(int(first), int(end)) for first, end in facts.finished])
    except (OSError, LookupError, ValueError, TypeError, AttributeError, SafetensorError) as error:
        if isinstance(error, FileNotFoundError) and not needed:
            raise
        raise AtlasDamaged(
            f"{path} is not a saved state of this plan ({error}); remove the atlas and mine again"
        ) from error


class MiningState:
    """The collectors of every mined layer, and the batches counted, `finished`, in any order. `devices` has one device
    per layer of the model; None: the CPU.
    """

    def __init__(self, shape: StateShape, *, devices: Sequence[torch.device] | None = None) -> None:
        self.shape, self.devices = shape, devices
        self.finished: list[Range] = []
        self.device = ""
        self.halved: list[int] = []
        """Batches computed in halves because memory ran out."""
        self.activity: dict[int, Activity] = {}
        self.routing: dict[int, Routing] = {}
        self.triggers: dict[int, Triggers] = {}
        self.random: dict[int, RandomFirings] = {}
        for layer, count in shape.memories.items():
            on, experts = torch.device("cpu") if devices is None else devices[layer], shape.experts.get(layer)
            weighted = experts is not None
            if shape.random is not None:
                self.random[layer] = RandomFirings(count, shape.signs, shape.random, weighted=weighted, device=on)
            if not shape.alone:
                self.activity[layer] = Activity(count, device=on)
                self.triggers[layer] = Triggers(count, shape.keep, shape.signs, weighted=weighted, device=on)
            if not shape.alone and experts is not None:
                self.routing[layer] = Routing(layer, experts, device=on)

    def collectors(self) -> dict[str, Collector]:
        """All collectors, by kind and layer."""
        kinds = ("activity", "routing", "triggers", "random")
        return {f"{kind}/{layer}": one for kind in kinds for layer, one in getattr(self, kind).items()}

    def tensors(self) -> dict[str, Tensor]:
        return {
            f"{name}/{key}": tensor for name, one in self.collectors().items() for key, tensor in one.state().items()
        }

    def save(self, path: Path, *, plan: str) -> None:
        """Writes the state atomically."""
        write_bytes(path, self.serialise(plan=plan))

    def serialise(self, *, plan: str) -> bytes:
        self.finished = join_ranges(self.finished)
        facts = StateFacts(plan, self.finished, self.device, self.halved)
        tensors = {name: tensor.contiguous().cpu() for name, tensor in self.tensors().items()}
        return save(tensors, {"state": json.dumps(asdict(facts))})  # one entry: a file's entries have no fixed order

    def load(self, path: Path, *, plan: str) -> None:
        """Replaces this state by that saved at `path`, which may have more layers."""
        with _open_state(path) as (file, facts):
            if facts.plan != plan:
                raise KeyError("plan")
            for name, one in self.collectors().items():
                stored = {key: file.get_tensor(f"{name}/{key}") for key in one.state()}
                for key, tensor in one.state().items():
                    if (stored[key].dtype, stored[key].shape) != (tensor.dtype, tensor.shape):
                        raise KeyError(f"{name}/{key}")
                one.load(stored)
        self.finished, self.device, self.halved = facts.finished, facts.device, facts.halved

    def absorb(self, path: Path, *, plan: str) -> None:
        """Adds the state saved at `path`. Raises AtlasDamaged, and PartsDiffer for a batch that is counted already."""
        if not self.finished:  # nothing to add it to
            self.load(path, plan=plan)
            return
        other = MiningState(self.shape, devices=self.devices)
        other.load(path, plan=plan)
        if twice := shared_ranges(self.finished, other.finished):
            batches = ", ".join(f"{first} to {end - 1}" for first, end in twice[:3]) + (", ..." if twice[3:] else "")
            raise PartsDiffer(f"{path} counts batches a second time ({batches}); leave it out, or mine again")
        self.device = join_names(self.device, other.device)
        self.halved = sorted([*self.halved, *other.halved])
        self.finished = join_ranges([*self.finished, *other.finished])
        ours = self.collectors()
        for name, one in other.collectors().items():
            ours[name].merge(one)

    def equality(self) -> dict[str, Any]:
        """What the manifest says if devices of several names computed the tables; empty otherwise."""
        if len(devices := split_names(self.device)) < 2:
            return {}
        return {"devices": devices, "equality": "equal to tolerance", "byte_identity_promised": False}
