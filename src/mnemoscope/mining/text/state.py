"""What a pass over a text accumulates: for each layer an Activity and one Triggers per sign; saved, loaded, added up.
Its size depends on the model and the plan, not on the text.
"""

import json
from collections.abc import Iterator, Sequence
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
from mnemoscope.mining.text.batches import Ints
from mnemoscope.mining.text.random_firings import RandomFirings
from mnemoscope.mining.text.ranges import Range, join_ranges, shared_ranges
from mnemoscope.mining.text.routing import Routing
from mnemoscope.mining.text.triggers import Triggers
from mnemoscope.models import LanguageModel

_STORED_AS = {torch.int64: "I64", torch.float32: "F32", torch.int32: "I32"}
"""Names of dtypes in safetensors files."""


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

    def width(self, layer: int) -> int:
        """The number of experts of a layer, routed and shared; 1 for a dense layer."""
        return len(self.experts[layer].widths) if layer in self.experts else 1


@dataclass(frozen=True)
class StateFacts:
    """The header of a saved state, read without its tensors."""

    plan: str
    finished: tuple[Range, ...]
    """The batches counted, by number in the order of the plan."""
    device: str
    """The name of the device that computed it; empty if unknown."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises FileNotFoundError, AtlasDamaged."""
        with _open_state(path, needed=False) as (_, header):
            return cls.parse(header)

    @classmethod
    def parse(cls, header: str) -> Self:
        facts = json.loads(header)
        finished = tuple((int(first), int(end)) for first, end in facts["finished"])
        return cls(facts["plan"], finished, facts["device"])


@contextmanager
def _open_state(path: Path, *, needed: bool = True) -> Iterator[tuple[Any, str]]:
    """A saved state and its header. Errors in the block become AtlasDamaged, and a missing file too, if `needed`."""
    try:
        with safe_open(path, "pt") as file:
            yield file, (file.metadata() or {})["state"]
    except (OSError, LookupError, ValueError, TypeError, AttributeError, SafetensorError) as error:
        if isinstance(error, FileNotFoundError) and not needed:
            raise
        raise AtlasDamaged(
            f"{path} is not a saved state of this plan ({error}); remove the atlas and mine again"
        ) from error


class MiningState:
    """The accumulators of every mined layer, and the batches counted: `finished` for a worker, which takes batches in
    any order; `next_batch` for a run that takes its batches in order. `devices` has one device per layer of the model;
    None: the CPU.
    """

    def __init__(self, shape: StateShape, *, devices: Sequence[torch.device] | None = None) -> None:
        self.shape = shape
        self.next_batch = 0
        self.finished: list[Range] = []
        self.device = ""
        self.halved: list[int] = []
        """Batches computed in halves because memory ran out."""
        widths = {layer: numbering.widths for layer, numbering in shape.experts.items()}
        on = {layer: torch.device("cpu") if devices is None else devices[layer] for layer in shape.memories}
        measured = {} if shape.alone else shape.memories
        self.activity = {
            layer: Activity(count, widths=widths.get(layer), device=on[layer]) for layer, count in measured.items()
        }
        self.routing = {
            layer: Routing(len(experts), device=on[layer]) for layer, experts in widths.items() if layer in measured
        }
        self.triggers = {
            (layer, sign): Triggers(count, shape.keep, weighted=layer in widths, device=on[layer])
            for layer, count in measured.items()
            for sign in shape.signs
        }
        self.random = {
            (layer, sign): RandomFirings(count, shape.random, weighted=layer in widths, device=on[layer])
            for layer, count in shape.memories.items()
            for sign in shape.signs
            if shape.random is not None
        }

    @classmethod
    def outline(cls, shape: StateShape) -> Self:
        """A state of meta tensors: names, shapes and dtypes without numbers."""
        return cls(shape, devices=[torch.device("meta")] * (1 + max(shape.memories, default=-1)))

    def save(self, path: Path, *, plan: str) -> None:
        """Writes the state atomically."""
        write_bytes(path, self.serialise(plan=plan))

    def serialise(self, *, plan: str) -> bytes:
        tensors = {name: tensor.contiguous().cpu() for name, tensor in self.tensors().items()}
        tensors["next_batch"] = torch.tensor([self.next_batch])
        tensors["halved"] = torch.tensor(self.halved, dtype=torch.int64)
        self.finished = join_ranges(self.finished)
        facts = {"plan": plan, "finished": self.finished, "device": self.device}
        return save(tensors, {"state": json.dumps(facts)})  # one entry: a file's entries have no fixed order

    def tensors(self) -> dict[str, Tensor]:
        return {f"{name}/{key}": tensor for name, part in self._parts() for key, tensor in part.state().items()}

    def load(self, path: Path, *, plan: str) -> None:
        """Replaces this state by that saved at `path`, which may have more layers."""
        with _open_state(path) as (file, header):
            facts = self._check(file, header, plan=plan)
            for name, part in self._parts():
                part.load({key: file.get_tensor(f"{name}/{key}") for key in part.state()})
            self.next_batch = int(file.get_tensor("next_batch")[0])
            self.halved = file.get_tensor("halved").tolist()
        self.finished, self.device = list(facts.finished), facts.device

    def _check(self, file: Any, header: str, *, plan: str) -> StateFacts:
        """The facts of an open state of this shape and plan."""
        facts = StateFacts.parse(header)
        if facts.plan != plan:
            raise KeyError("plan")
        for name, tensor in MiningState.outline(self.shape).tensors().items():
            stored = file.get_slice(name)
            if (stored.get_dtype(), stored.get_shape()) != (_STORED_AS[tensor.dtype], list(tensor.shape)):
                raise KeyError(name)
        return facts

    def absorb(self, path: Path, *, plan: str, mixed: bool = False) -> None:
        """Adds the state saved at `path`, one accumulator in memory at a time."""
        self.absorb_numbers(path, self.absorb_facts(path, plan=plan, mixed=mixed))

    def absorb_facts(self, path: Path, *, plan: str, mixed: bool = False) -> str:
        """The first half of `absorb`: checks the file and adds the batches it counts; returns its header."""
        with _open_state(path) as (file, header):
            facts = self._check(file, header, plan=plan)
            halved = file.get_tensor("halved").tolist()
        if twice := shared_ranges(self.finished, facts.finished):
            batches = ", ".join(f"{first} to {end - 1}" for first, end in twice[:3]) + (", ..." if twice[3:] else "")
            raise PartsDiffer(f"{path} counts batches a second time ({batches}); leave it out, or mine again")
        joined = join_names(self.device, facts.device)
        if len(split_names(joined)) > 1 and not mixed:
            others = f", others on {self.device}" if self.device not in ("", joined) else ""
            raise PartsDiffer(
                f"{path} was computed on {facts.device}{others}, so last digits may differ; "
                "mine it again on the same, or --allow-mixed-devices"
            )
        self.device = joined
        self.halved = sorted([*self.halved, *halved])
        self.finished = join_ranges([*self.finished, *facts.finished])
        return header

    def absorb_numbers(self, path: Path, header: str) -> None:
        """The second half of `absorb`: adds the tensors."""
        names = [*MiningState.outline(self.shape).tensors()]
        for prefix, part in self._parts():
            with _open_state(path) as (file, present):  # opened for each part, so that its pages are freed in between
                if present != header:
                    raise ValueError("it was written again while it was read")
                tensors = {name: file.get_tensor(name) for name in names if name.startswith(f"{prefix}/")}
                part.add_state({name.removeprefix(f"{prefix}/"): tensor for name, tensor in tensors.items()})

    def equality(self) -> dict[str, Any]:
        """What the manifest says if devices of several names computed the tables; empty otherwise."""
        if len(devices := split_names(self.device)) < 2:
            return {}
        return {"devices": devices, "equality": "equal to tolerance", "byte_identity_promised": False}

    def _parts(self) -> list[tuple[str, Activity | Routing | Triggers]]:
        return [
            *((f"activity/{layer}", one) for layer, one in self.activity.items()),
            *((f"routing/{layer}", one) for layer, one in self.routing.items()),
            *((f"triggers/{layer}/{sign}", one) for (layer, sign), one in self.triggers.items()),
            *((f"random/{layer}/{sign}", one) for (layer, sign), one in self.random.items()),
        ]

    def named_sentences(self) -> Ints:
        """The ids of all sentences that hold a trigger, ascending."""
        return _distinct_ids([one.state()["sentence"] for one in self.triggers.values()])

    def drawn_sentences(self) -> Ints:
        """The ids of all sentences that hold a firing drawn at random, ascending."""
        return _distinct_ids([one.state()["sentence"] for one in self.random.values()])


def _distinct_ids(tensors: Sequence[Tensor]) -> Ints:
    each = [np.unique(one.cpu().numpy()) for one in tensors]
    ids = np.unique(np.concatenate([np.empty(0, np.int64), *each]))
    return ids[ids >= 0]
