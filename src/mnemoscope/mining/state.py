"""Everything that a pass over a text accumulates, as one thing that can be saved, loaded and merged.

Per layer an Activity and one Triggers for each sign. Its size depends on the model and the plan, not on the text.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from mnemoscope.errors import AtlasDamaged, PartsDiffer
from mnemoscope.files import write_bytes
from mnemoscope.memory import Numbering
from mnemoscope.mining.activity import Activity
from mnemoscope.mining.ranges import Range, join_ranges
from mnemoscope.mining.routing import Routing
from mnemoscope.mining.triggers import Triggers
from mnemoscope.models import LanguageModel


@dataclass(frozen=True)
class StateShape:
    """What decides the state's size: memories of each mined layer, triggers kept, signs (+1; -1 where it exists).

    `experts` are the numberings of the layers that have some.
    """

    memories: dict[int, int]
    keep: int
    signs: tuple[int, ...]
    experts: dict[int, Numbering] = field(default_factory=dict)

    @classmethod
    def of(cls, model: LanguageModel, *, keep: int, layers: Sequence[int] | None = None) -> "StateShape":
        """The shape for these layers of a model; all of them for None."""
        chosen = range(model.sizes.layers) if layers is None else layers
        numberings = {layer: model.numbering(layer) for layer in chosen}
        experts = {layer: numbering for layer, numbering in numberings.items() if numbering.routed is not None}
        return cls({layer: each.count for layer, each in numberings.items()}, keep, model.signs, experts)

    @property
    def numberings(self) -> dict[int, Numbering]:
        """Those of all mined layers; empty where no layer has experts."""
        if not self.experts:
            return {}
        return {layer: self.experts.get(layer, Numbering((count,))) for layer, count in self.memories.items()}

    def width(self, layer: int) -> int:
        """How many experts a layer has, routed and shared; a dense layer is one."""
        return len(self.experts[layer].widths) if layer in self.experts else 1


@dataclass(frozen=True)
class StateFacts:
    """What a saved state says of itself in its header, which is read without the rest."""

    plan: str
    """The hash of its plan."""
    finished: tuple[Range, ...]
    """The batches that it counts, by number in the order of the plan."""
    device: str
    """What they were computed on, by name."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """The facts of the state saved at `path`; raises FileNotFoundError, AtlasDamaged."""
        try:
            with safe_open(path, "np") as file:
                said = json.loads((file.metadata() or {})["state"])
            finished = tuple((int(first), int(end)) for first, end in said["finished"])
            return cls(said["plan"], finished, said["device"])
        except FileNotFoundError:
            raise
        except (OSError, KeyError, ValueError, TypeError, SafetensorError) as error:
            raise _no_state(path, error) from error


def _no_state(path: Path, error: Exception) -> AtlasDamaged:
    return AtlasDamaged(f"{path} is not a saved state of this plan ({error}); remove the atlas and mine again")


class MiningState:
    """The accumulators of every mined layer, and what was counted: `finished`, of a worker that takes batches in any
    order, or `next_batch`, of a run that takes its own one after the other.

    `devices` are those of all layers of the model, on which each layer is counted; the CPU where it is left out.
    """

    def __init__(self, shape: StateShape, *, devices: Sequence[torch.device] | None = None) -> None:
        self.shape = shape
        self.next_batch = 0
        self.finished: list[Range] = []
        self.device = ""
        """The name of what it was computed on; said of the states that workers make."""
        self.halved: list[int] = []
        """Batches that were computed in halves because memory ran out."""
        widths = {layer: numbering.widths for layer, numbering in shape.experts.items()}
        on = {layer: torch.device("cpu") if devices is None else devices[layer] for layer in shape.memories}
        self.activity = {
            layer: Activity(count, widths=widths.get(layer), device=on[layer])
            for layer, count in shape.memories.items()
        }
        self.routing = {layer: Routing(len(own), device=on[layer]) for layer, own in widths.items()}
        self.triggers = {
            (layer, sign): Triggers(count, shape.keep, weighted=layer in widths, device=on[layer])
            for layer, count in shape.memories.items()
            for sign in shape.signs
        }

    def save(self, path: Path, *, plan: str) -> None:
        """Writes the state to `path` whole or not at all, with the hash of its plan; raises StoreFailed."""
        write_bytes(path, self.serialise(plan=plan))

    def serialise(self, *, plan: str) -> bytes:
        """The state as a file holds it."""
        tensors = {
            f"{name}/{key}": tensor.contiguous().cpu()
            for name, part in self._parts()
            for key, tensor in part.state().items()
        }
        tensors["next_batch"] = torch.tensor([self.next_batch])
        tensors["halved"] = torch.tensor(self.halved, dtype=torch.int64)
        self.finished = join_ranges(self.finished)
        facts = {"plan": plan, "finished": self.finished, "device": self.device}
        return save(tensors, {"state": json.dumps(facts)})  # one entry: a file's entries stand in chance order

    def load(self, path: Path, *, plan: str) -> None:
        """Becomes the state saved at `path`; raises AtlasDamaged if it is not one of this shape and plan.

        The file may hold more layers than the shape, which are not read.
        """
        try:
            facts = StateFacts.read(path)
            wanted = [f"{name}/{key}" for name, part in self._parts() for key in part.state()]
            with safe_open(path, "pt") as file:
                tensors = {name: file.get_tensor(name) for name in (*wanted, "next_batch", "halved")}
            if facts.plan != plan:
                raise KeyError("plan")
            for name, part in self._parts():
                own = {key: tensors[f"{name}/{key}"] for key in part.state()}
                for key, tensor in part.state().items():
                    if own[key].shape != tensor.shape or own[key].dtype != tensor.dtype:
                        raise KeyError(f"{name}/{key}")
                part.load(own)
            self.next_batch = int(tensors["next_batch"][0])
            self.halved = tensors["halved"].tolist()
            self.finished, self.device = list(facts.finished), facts.device
        except (OSError, KeyError, SafetensorError) as error:
            raise _no_state(path, error) from error

    def merge(self, other: "MiningState") -> None:
        """Adds the state of another part of the same plan."""
        if self.shape != other.shape:
            raise PartsDiffer("the parts mined other layers, memories or numbers of triggers")
        self.halved = sorted(self.halved + other.halved)
        self.finished = join_ranges([*self.finished, *other.finished])
        self.device = self.device or other.device
        for layer, activity in self.activity.items():
            activity.merge(other.activity[layer])
        for layer, routing in self.routing.items():
            routing.merge(other.routing[layer])
        for key, triggers in self.triggers.items():
            triggers.merge(other.triggers[key])

    def _parts(self) -> list[tuple[str, "Activity | Routing | Triggers"]]:
        parts: list[tuple[str, Activity | Routing | Triggers]] = []
        parts += [(f"activity/{layer}", activity) for layer, activity in self.activity.items()]
        parts += [(f"routing/{layer}", routing) for layer, routing in self.routing.items()]
        return parts + [(f"triggers/{layer}/{sign}", v) for (layer, sign), v in self.triggers.items()]

    def named_sentences(self) -> Tensor:
        """The ids of all sentences that hold a trigger, ascending."""
        found = [np.unique(t.state()["sentence"].cpu().numpy()) for t in self.triggers.values()]
        ids = np.unique(np.concatenate(found))
        return torch.from_numpy(ids[ids >= 0])
