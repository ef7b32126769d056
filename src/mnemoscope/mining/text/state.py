"""Everything that a pass over a text accumulates, as one thing that can be saved, loaded and merged.

Per layer an Activity and one Triggers for each sign. Its size depends on the model and the plan, not on the text.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from mnemoscope.errors import AtlasDamaged, PartsDiffer
from mnemoscope.foundation.files import write_bytes
from mnemoscope.foundation.memory_names import Numbering
from mnemoscope.kernels.devices import join_names, split_names
from mnemoscope.mining.text.activity import Activity
from mnemoscope.mining.text.ranges import Range, join_ranges, shared_ranges
from mnemoscope.mining.text.routing import Routing
from mnemoscope.mining.text.triggers import Triggers
from mnemoscope.models import LanguageModel

_STORED_AS = {torch.int64: "I64", torch.float32: "F32", torch.int32: "I32"}
"""What a file calls the kinds of numbers."""


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

    @classmethod
    def from_document(cls, stored: Mapping[str, Any]) -> "StateShape":
        """The shape that `document` gave."""
        memories = {int(layer): int(count) for layer, count in stored["memories"].items()}
        experts = {int(layer): Numbering.of(own, memories[int(layer)]) for layer, own in stored["experts"].items()}
        return cls(memories, int(stored["keep"]), tuple(stored["signs"]), experts)

    @classmethod
    def from_file(cls, path: Path) -> "StateShape":
        """That of the state saved at `path`; raises FileNotFoundError, AtlasDamaged."""
        with _opening(path) as (_, said):
            return cls.from_document(json.loads(said)["shape"])

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "memories": {str(layer): count for layer, count in self.memories.items()},
            "keep": self.keep,
            "signs": list(self.signs),
            "experts": {str(layer): numbering.document() for layer, numbering in self.experts.items()},
        }

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
    """What they were computed on, by name; empty where nobody said."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """The facts of the state saved at `path`; raises FileNotFoundError, AtlasDamaged."""
        with _opening(path) as (_, said):
            return cls.parse(said)

    @classmethod
    def parse(cls, header: str) -> Self:
        """The facts that a header says; raises what indexing raises where it says something else."""
        said = json.loads(header)
        finished = tuple((int(first), int(end)) for first, end in said["finished"])
        return cls(said["plan"], finished, said["device"])


@contextmanager
def _opening(path: Path) -> Iterator[tuple[Any, str]]:
    """A saved state, and its header; in the block, whatever is missing becomes AtlasDamaged, too."""
    try:
        with safe_open(path, "pt") as file:
            yield file, (file.metadata() or {})["state"]
    except FileNotFoundError:
        raise
    except (OSError, LookupError, ValueError, TypeError, AttributeError, SafetensorError) as error:
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

    @classmethod
    def outline(cls, shape: StateShape) -> Self:
        """A state that has no numbers: its tensors lie nowhere, but have names, shapes and kinds."""
        return cls(shape, devices=[torch.device("meta")] * (1 + max(shape.memories, default=-1)))

    def save(self, path: Path, *, plan: str) -> None:
        """Writes the state to `path` whole or not at all, with the hash of its plan; raises StoreFailed."""
        write_bytes(path, self.serialise(plan=plan))

    def serialise(self, *, plan: str) -> bytes:
        """The state as a file holds it."""
        tensors = {name: tensor.contiguous().cpu() for name, tensor in self.tensors().items()}
        return save({**tensors, **self.counts()}, self.header(plan))

    def tensors(self) -> dict[str, Tensor]:
        """What is accumulated, by name in a file, where it lies."""
        return {f"{name}/{key}": tensor for name, part in self._parts() for key, tensor in part.state().items()}

    def counts(self) -> dict[str, Tensor]:
        """The other tensors of a file."""
        return {
            "next_batch": torch.tensor([self.next_batch]),
            "halved": torch.tensor(self.halved, dtype=torch.int64),
        }

    def header(self, plan: str) -> dict[str, str]:
        """What a file says of itself: one entry, since a file's entries stand in chance order."""
        self.finished = join_ranges(self.finished)
        said = {"plan": plan, "finished": self.finished, "device": self.device, "shape": self.shape.document()}
        return {"state": json.dumps(said)}

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

    def merge(self, other: "MiningState", *, mixed: bool = False) -> None:
        """Adds the state of another part of the same plan; raises PartsDiffer as `absorb` does."""
        if self.shape != other.shape:
            raise PartsDiffer("the parts mined other layers, memories or numbers of triggers")
        self._count("the other part", other.finished, other.device, other.halved, mixed=mixed)
        for (_, part), (_, added) in zip(self._parts(), other._parts(), strict=True):
            part.add_state(added.state())

    def absorb(self, path: Path, *, plan: str, mixed: bool = False) -> None:
        """Adds the state saved at `path`, of which the counts or triggers of one layer are in memory at a time.

        Triggers that may be among the best wait to be sorted, as in mining, so memory does not grow with more states.
        Raises AtlasDamaged if it is not one of this shape and plan, PartsDiffer if it counts batches that are counted
        already, or was computed on something of another name (not if `mixed`); then nothing is changed.
        """
        self.absorb_numbers(path, self.absorb_facts(path, plan=plan, mixed=mixed))

    def absorb_facts(self, path: Path, *, plan: str, mixed: bool = False) -> str:
        """The first half of `absorb`: checks that all fits, adds what the file says it counts; gives its header."""
        try:
            with _opening(path) as (file, header):
                facts = StateFacts.parse(header)
                if facts.plan != plan:
                    raise KeyError("plan")
                for name, tensor in MiningState.outline(self.shape).tensors().items():
                    piece = file.get_slice(name)
                    if (piece.get_dtype(), piece.get_shape()) != (_STORED_AS[tensor.dtype], list(tensor.shape)):
                        raise KeyError(name)
                halved = file.get_tensor("halved").tolist()
        except FileNotFoundError as error:
            raise _no_state(path, error) from error
        self._count(str(path), facts.finished, facts.device, halved, mixed=mixed)
        return header

    def absorb_numbers(self, path: Path, header: str) -> None:
        """The second half of `absorb`: adds what is accumulated; AtlasDamaged if the file has another header by now."""
        names = [*MiningState.outline(self.shape).tensors()]
        try:
            for own, part in self._parts():
                with _opening(path) as (file, said):  # anew for every part, so that what was read of it is let go
                    if said != header:
                        raise ValueError("it was written again while it was read")
                    found = {name: file.get_tensor(name) for name in names if name.startswith(f"{own}/")}
                    part.add_state({name.removeprefix(f"{own}/"): tensor for name, tensor in found.items()})
        except FileNotFoundError as error:
            raise _no_state(path, error) from error

    def _count(
        self, where: str, finished: Sequence[Range], device: str, halved: Sequence[int], *, mixed: bool
    ) -> None:
        """Adds what a state says of itself; raises PartsDiffer."""
        if twice := shared_ranges(self.finished, finished):
            said = ", ".join(f"{first} to {end - 1}" for first, end in twice[:3]) + (", ..." if twice[3:] else "")
            raise PartsDiffer(f"{where} counts batches a second time ({said}); leave it out, or mine again")
        joined = join_names(self.device, device)
        if len(split_names(joined)) > 1 and not mixed:
            others = f", others on {self.device}" if self.device not in ("", joined) else ""
            raise PartsDiffer(
                f"{where} was computed on {device}{others}, so last digits may differ; "
                "mine it again on the same, or --allow-mixed-devices"
            )
        self.device = joined
        self.halved = sorted([*self.halved, *halved])
        self.finished = join_ranges([*self.finished, *finished])

    def equality(self) -> dict[str, Any]:
        """What a manifest says of tables that were computed on things of several names; nothing of others."""
        if len(devices := split_names(self.device)) < 2:
            return {}
        return {"devices": devices, "equality": "equal to tolerance", "byte_identity_promised": False}

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
