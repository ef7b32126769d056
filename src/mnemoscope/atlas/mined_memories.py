"""The memories an atlas has, by its manifest alone. Imports no table library, so a wrong name is refused at once."""

from pathlib import Path

from mnemoscope.atlas.form import Manifest
from mnemoscope.errors import MemoryIdError
from mnemoscope.foundation.formatting import runs
from mnemoscope.foundation.memory_names import MemoryId, Numbering


class MinedMemories:
    """The memories of the atlas in the folder `path`, by the layers that were mined."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self.layers: tuple[int, ...] = tuple(manifest.layers)
        sizes = manifest.model.sizes
        self.numberings = {
            layer: Numbering.of(None if experts is None else vars(experts), sizes.memories[layer])
            for layer, experts in enumerate(sizes.experts or ())
        }
        """By layer, of a model of experts; empty for any other model."""

    @property
    def spec(self) -> str:
        """The name of the model that was mined."""
        return self.manifest.model.spec

    @property
    def fingerprint(self) -> str:
        return self.manifest.model.fingerprint

    def memories(self, layer: int) -> int:
        """The number of memories of a layer; raises MemoryIdError for a layer that was not mined."""
        if layer not in self.layers:
            raise MemoryIdError(f"layer {layer} is not in {self.path}, which has {self.range_text()}")
        return self.manifest.model.sizes.memories[layer]

    def numbering(self, layer: int) -> Numbering:
        """The numbering of a mined layer's memories; raises MemoryIdError."""
        return self.numberings.get(layer, Numbering((self.memories(layer),)))

    def name(self, layer: int, number: int) -> MemoryId:
        """The memory of that number in a layer; experts' memories are counted through."""
        return self.numbering(layer).name(layer, number)

    def number(self, memory: MemoryId) -> int:
        """The number of a memory in its layer; raises MemoryIdError for a memory that the atlas does not have."""
        number = self.numbering(memory.layer).number(memory) if memory.layer in self.layers else None
        if number is None:
            counted = MemoryId(memory.layer, memory.memory) == memory and memory.layer in self.layers
            exists = counted and memory.memory < self.memories(memory.layer)
            meant = f"; in a layer of experts write {self.name(memory.layer, memory.memory)}" if exists else ""
            raise MemoryIdError(f"{memory} is not in {self.path}, which has {self.range_text()}{meant}")
        return number

    def range_text(self) -> str:
        """The atlas's memories in words: `layers 0-3,7 with memories 0-1023`."""
        if self.numberings:
            kinds: dict[str, list[int]] = {}
            for layer in self.layers:
                kinds.setdefault(self.numbering(layer).range_text(), []).append(layer)
            return "; ".join(f"layers {runs(layers)} with {text}" for text, layers in kinds.items())
        counts = sorted({self.memories(layer) for layer in self.layers})
        sizes = " or ".join(f"0-{count - 1}" for count in counts)
        return f"layers {runs(self.layers)} with memories {sizes}"
