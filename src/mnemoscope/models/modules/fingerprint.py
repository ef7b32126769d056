"""The identity of a language model: one sha256 over everything that it computes with, independent of its location.

Covers the configuration's essentials, every weight (name, shape, dtype, bytes) as stored, the tokenizer, the token
before every sentence, and the source of code outside of installed packages: that of the model's classes and, file by
file, of their imports. Tied weights count once. Not covered: code without a file (a notebook's), names, paths, library
versions, and how the model is run (device, attention kernel), which the plan of mining holds. A model converted to
another dtype before loading is another model.
"""

import ast
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mnemoscope.errors import ModelDamaged
from mnemoscope.foundation.reading import Reading
from mnemoscope.models.modules.linear_maps import is_of_adapters
from mnemoscope.models.modules.offloading import own_parameters, weight_of
from mnemoscope.models.modules.towers import towers_of
from mnemoscope.models.modules.wrappers import name_inside
from mnemoscope.models.tokens.model_tokens import Beginning
from mnemoscope.models.tokens.python_tokens import REMOTE_CODE

# `tie_word_embeddings` is among them since the list of weights shows it.
_INCIDENTAL = {
    *("_name_or_path", "architectures", "auto_map", "chunk_size_feed_forward", "dtype", "id2label", "label2id"),
    *("output_attentions", "output_hidden_states", "pad_token_id", "problem_type", "return_dict"),
    *("tie_word_embeddings", "torch_dtype", "transformers_version", "use_cache"),
}
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_LIBRARIES = frozenset({"accelerate", "bitsandbytes", "mnemoscope", "peft", "torch", "transformers"})
"""Packages that count as installed wherever they are, such as in a developer's folder."""


def content_fingerprint(model: nn.Module, config: dict[str, Any], tokenizer: dict[str, Any]) -> str:
    digest = hashlib.sha256()
    for part in (essentials(config), tokenizer):
        digest.update(json.dumps(part, sort_keys=True, default=str).encode())
    for name, weight in read_weights(model):
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        # Without a copy if it is contiguous in main memory.
        raw: Any = weight.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy()
        digest.update(raw)
    for source in _own_code(model):
        digest.update(hashlib.sha256(source).digest())
    return digest.hexdigest()


def fingerprint(content: str, beginning: Beginning, reading: Reading) -> str:
    """The sha256, in hex, of a content and the frame of a sentence, which is partly in files outside of the content."""
    frame = [] if reading.causal else [asdict(reading)]
    return hashlib.sha256(json.dumps([content, beginning.kind, beginning.token, *frame]).encode()).hexdigest()


def reading_fingerprint(tokenizer: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(tokenizer, sort_keys=True, default=str).encode()).hexdigest()


def _own_code(model: nn.Module) -> list[bytes]:
    """The source files, sorted by content, of the model's classes outside of libraries, and of their imports."""
    classes = {kind for module in model.modules() for kind in type(module).__mro__}
    waiting = [(kind.__module__, _defining_file(kind)) for kind in classes]
    sources: dict[Path, bytes] = {}
    while waiting:
        name, path = waiting.pop()
        if path is None or path in sources or path.suffix != ".py":
            continue
        root = name.partition(".")[0]
        library = root in sys.stdlib_module_names or root in _LIBRARIES or not _INSTALLED.isdisjoint(path.parts)
        if root == REMOTE_CODE or not library:
            sources[path] = path.read_bytes()
            waiting += _imports(sources[path], path, name)
    return sorted(sources.values())


def _defining_file(kind: type) -> Path | None:
    """The file that defines a class, whether or not its module is among the imported ones."""
    code = (getattr(value, "__code__", None) for value in vars(kind).values())
    files = [getattr(sys.modules.get(kind.__module__), "__file__", None), *(each.co_filename for each in code if each)]
    return next((Path(file).resolve() for file in files if file and Path(file).is_file()), None)


def _imports(source: bytes, path: Path, name: str) -> Iterator[tuple[str, Path | None]]:
    """Name and file of every module in a module's import statements, also within functions."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        of, level = (node.module or "", node.level) if isinstance(node, ast.ImportFrom) else ("", 0)
        for imported_name in {of, *(f"{of}.{each.name}".strip(".") for each in node.names)} - {""}:
            whole = f"{package.rsplit('.', level - 1)[0]}.{imported_name}".strip(".") if level else imported_name
            beside = path.parents[max(0, level - 1)].joinpath(*imported_name.split("."))
            imported = getattr(sys.modules.get(whole), "__file__", None)
            places = [Path(imported)] if imported else [beside.with_name(f"{beside.name}.py"), beside / "__init__.py"]
            yield whole, next((place.resolve() for place in places if place.is_file()), None)


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and stored buffer once; a quantised one as its tensors, an offloaded one as a shape."""
    weights: dict[str, Tensor] = {name: parameter.detach() for name, parameter in own_parameters(model).items()}
    stored = model.state_dict().keys()
    weights.update({name: buffer for name, buffer in model.named_buffers() if {name, name_inside(name)} & stored})
    return {part: plain for name, tensor in weights.items() for part, plain in plain_parts(name, tensor)}


def read_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """`named_weights` one at a time, sorted by name without wrappers, but not those of towers, which text never runs;
    fetches offloaded ones for one step.
    """
    beside, weights = tuple(f"{path}." for path in towers_of(model)), named_weights(model)
    named = ((name_inside(name), name, weight) for name, weight in weights.items() if not name.startswith(beside))
    for plain, name, weight in sorted(named, key=lambda each: each[0]):
        path, _, name_inside_module = name.rpartition(".")
        yield plain, weight_of(model.get_submodule(path), name_inside_module).detach() if weight.is_meta else weight


def plain_parts(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """A tensor with its name, or the named component tensors of a quantised one."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        yield name, tensor
        return
    for inner in flatten()[0]:
        yield from plain_parts(f"{name}.{inner}", getattr(tensor, inner))


def active_adapters(model: nn.Module) -> list[list[object]]:
    """The active adapters of a model's layers, and their strength, by path: none of that is a weight."""
    adapters = []
    for path, module in model.named_modules():
        if is_of_adapters(module):
            strengths = sorted(name for name in vars(module) if name.endswith("_scaling"))
            names = ("active_adapters", "merged_adapters", "disable_adapters", "scaling", *strengths)
            stated = [getattr(module, name, None) for name in names]
            if stated[0] is not None:
                adapters.append([name_inside(path), type(module).__name__, *stated])
    # Peft changes its lists, dictionaries and tensors in place: a copy, or a later state would equal itself.
    copied: list[list[object]] = json.loads(json.dumps(adapters, default=_numbers))
    return copied


def _numbers(stated: object) -> object:
    return stated.tolist() if isinstance(stated, Tensor) else str(stated)


def check_finite(model: nn.Module) -> None:
    """Raises ModelDamaged, naming the weight, if a weight is NaN or infinite."""
    for name, weight in read_weights(model):
        if not weight.is_floating_point():
            continue
        if weight.numel() == 1 and bool(torch.isinf(weight)):  # no weight, but a bound that is never reached
            continue
        # The sum is one fast pass; only where it is not finite is every entry checked.
        if not bool(torch.isfinite(weight.sum(dtype=torch.float32))) and not bool(torch.isfinite(weight).all()):
            bad = int((~torch.isfinite(weight)).sum())
            raise ModelDamaged(
                f"weight {name!r} holds {bad} NaN or infinite numbers of {weight.numel()}; take an undamaged copy"
            )


def essentials(config: Any) -> Any:
    """A configuration's entries that a number can depend on."""
    if isinstance(config, dict):
        kept = {key: essentials(value) for key, value in config.items() if key not in _INCIDENTAL}
        return {key: value for key, value in kept.items() if value is not None and not str(key).startswith("_attn")}
    if isinstance(config, list | tuple):
        return [essentials(value) for value in config]
    return config
