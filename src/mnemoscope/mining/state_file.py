"""A file of tensors in the format of safetensors, written piece by piece, so that they need not be in memory together.

Byte for byte what safetensors writes of them at once. Knows nothing of what the tensors are.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from mnemoscope.files import replacing

STORED_AS = {torch.int64: "I64", torch.float32: "F32", torch.int32: "I32"}
"""What a file calls the kinds of numbers, in the order in which it holds them."""

PutTensors = Callable[[Mapping[str, Tensor]], None]


@contextmanager
def writing_tensors(path: Path, layout: Mapping[str, Tensor], header: Mapping[str, str]) -> Iterator[PutTensors]:
    """What puts tensors into a file, in any order; it becomes `path` when the block ends well.

    `layout` are all that will be put, of which only names, shapes and kinds count. Raises StoreFailed.
    """
    order = [*STORED_AS]
    places: dict[str, int] = {}
    said: dict[str, object] = {"__metadata__": dict(header)}
    end = 0
    for name in sorted(layout, key=lambda name: (order.index(layout[name].dtype), name)):
        tensor = layout[name]
        places[name], end = end, end + tensor.numel() * tensor.itemsize
        said[name] = {
            "dtype": STORED_AS[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [places[name], end]
        }  # fmt: skip
    opening = json.dumps(said, separators=(",", ":"), ensure_ascii=False).encode()
    opening += b" " * (-len(opening) % 8)
    with replacing(path) as file:
        file.write(len(opening).to_bytes(8, "little") + opening)

        def put(tensors: Mapping[str, Tensor]) -> None:
            for name, tensor in tensors.items():
                file.seek(8 + len(opening) + places.pop(name))
                file.write(tensor.contiguous().numpy().data)

        yield put
        assert not places, f"nobody put {', '.join(places)}"
