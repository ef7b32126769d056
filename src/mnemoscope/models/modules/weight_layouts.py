"""Weights that lie in a folder otherwise than transformers writes them: other file names, wrapped names, nested dicts.

Code that trains keeps weights as it has them: behind the names of wrappers (`module.` of DDP, `_orig_mod.` of
torch.compile, the attribute of a Lightning module), inside a checkpoint with an optimizer, in `model.pt`, with the
`gamma` and `beta` of old norms, or as shards without an index. The tensors are then read here and handed over under the
names that the model asks for; whether all of them are there is for the caller to check. Nothing stored runs.
"""

import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers import GenerationConfig

from mnemoscope.errors import ModelDamaged, ModelNotFound, ModelUnsupported

_FILES = (
    *("*.safetensors", "pytorch_model*.bin", "pytorch_model.pt", "pytorch_model.pth", "model.pt", "model.pth"),
    *("model.bin", "model.ckpt", "checkpoint.pt", "checkpoint.pth"),
)
"""Files of weights; of several kinds the first counts."""
_USUAL = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_LEFT_OUT = ("adapter_model", ".")
"""What files of adapters begin with, and hidden ones: `._model.safetensors` is what macOS knows of a file."""
_NESTED = ("state_dict", "model_state_dict", "model", "module", "network", "net")
"""Where training code keeps the weights in a checkpoint."""
_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"}
"""Attributes behind which wrappers of torch keep the module that they wrap."""
_OLD_NORMS = {"gamma": "weight", "beta": "bias"}


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the folder's weights, of one kind; none where there are none."""
    for pattern in _FILES:
        found = sorted(path for path in folder.glob(pattern) if not path.name.startswith(_LEFT_OUT))
        if found:
            return found
    return []


def no_weights(folder: Path) -> ModelNotFound:
    """The error of a folder without weights."""
    return ModelNotFound(
        f"folder {str(folder)!r} holds no weights (*.safetensors, pytorch_model*.bin or model.pt); save the model there"
        " first"
    )


def is_usual(folder: Path) -> bool:
    """Whether transformers finds the weights by their files' names."""
    return any((folder / name).is_file() for name in _USUAL)


def damaged_file(folder: Path) -> str | None:
    """The name of the first file of weights that is cut off or damaged, or None."""
    for path in weight_files(folder):
        try:
            if path.suffix == ".safetensors":
                with safe_open(path, framework="pt"):
                    pass
                continue
            with path.open("rb") as file:
                begins = file.read(2)
            if not begins or (begins == b"PK" and not zipfile.is_zipfile(path)):
                return path.name
        except Exception:  # whatever the reader says of it
            return path.name
    return None


def load_stored_otherwise(
    folder: Path, kind: Any, config: Any, *, trust_remote_code: bool
) -> tuple[Any, dict[str, Any]]:
    """The model of a folder, which the class `kind` makes, and what loading noted; its tensors are given the names that
    fit the model best.

    Raises ModelNotFound, ModelUnsupported, and what the readers raise.
    """
    with torch.device("meta"):
        empty = kind.from_config(config, trust_remote_code=trust_remote_code)
    stored = _read(weight_files(folder), folder)
    names = fitting_names(stored, wanted=empty.state_dict(), base=empty.base_model_prefix)
    load: Any = type(empty).from_pretrained
    model, notes = load(
        None, config=config, state_dict={names[name]: tensor for name, tensor in stored.items()},
        dtype="auto", output_loading_info=True,
    )  # fmt: skip
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return model, notes


def check_complete(notes: Mapping[str, Any], source: str, *, of_hub: bool) -> None:
    """Raises ModelDamaged where loading noted weights of the model that were not stored."""
    missing, others = sorted(notes["missing_keys"]), sorted(notes.get("unexpected_keys") or ())
    if not missing:
        return
    text = f"model {source!r} lacks {len(missing)} of its weights, the first is {missing[0]!r}"
    if others:
        known = "download the repository, since wrappers' names are known in folders alone" if of_hub else (
            "give them the names that transformers has for this model"
        )  # fmt: skip
        raise ModelDamaged(
            f"{text}, and holds {len(others)} of other names, such as {others[0]!r}; {known}, or take a complete copy"
        )
    raise ModelDamaged(f"{text}; take a complete copy")


def _read(files: list[Path], folder: Path) -> dict[str, Tensor]:
    if not files:
        raise no_weights(folder)
    found: dict[str, Tensor] = {}
    for path in files:
        if path.suffix == ".safetensors":
            found |= load_file(path)
        else:
            stored = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
            found |= _tensors_of(stored, path)
    return found


def _tensors_of(stored: Any, path: Path) -> dict[str, Tensor]:
    """The tensors of a state dict, which may lie in another; raises ModelDamaged."""
    seen = stored
    # Inside first: beside the weights a checkpoint may hold tensors of its own, such as a state of random numbers.
    while isinstance(seen, Mapping) and any(isinstance(seen.get(name), Mapping) for name in _NESTED):
        seen = next(seen[name] for name in _NESTED if isinstance(seen.get(name), Mapping))
    if isinstance(seen, Mapping):
        tensors = {str(name): value for name, value in seen.items() if isinstance(value, Tensor)}
        if tensors:
            return tensors
    keys = f"the entries {', '.join(map(repr, list(stored)[:6]))}" if isinstance(stored, Mapping) else "no entries"
    raise ModelDamaged(
        f"{str(path)!r} has no weights where training code keeps them: it has {keys};"
        " save the weights alone, torch.save(model.state_dict(), ...)"
    )


def fitting_names(stored: Iterable[str], *, wanted: Iterable[str], base: str) -> dict[str, str]:
    """For each stored name the one to read it under: itself, or what is left of it without wrappers.

    Each change is made to all names, and only where more of them then are `wanted` ones, with or without the prefix
    `base` of the model proper. Raises ModelUnsupported where two names become one.
    """
    asked = set(wanted)
    asked |= {name.removeprefix(f"{base}.") for name in asked}

    def fit(names: Mapping[str, str]) -> int:
        return sum(name in asked or f"{base}.{name}" in asked for name in names.values())

    names = {name: name for name in stored}
    for change in (_without_wrappers, _without_old_norms):
        changed = {name: change(now) for name, now in names.items()}
        names = changed if fit(changed) > fit(names) else names
    stranger = next((now for now in names.values() if now not in asked and f"{base}.{now}" not in asked), "")
    parts = stranger.split(".")[:-1]
    for count in range(1, len(parts) + 1):
        prefix = ".".join(parts[:count]) + "."
        changed = {name: now.removeprefix(prefix) for name, now in names.items()}
        names = changed if fit(changed) > fit(names) else names
    taken = [now for now in names.values() if now in asked or f"{base}.{now}" in asked]
    others = (now for now in names.values() if now not in asked and f"{base}.{now}" not in asked)
    twice = [name for name, times in Counter(taken).items() if times > 1]
    # A teacher, or an average of the weights, that lies beside them behind another name.
    twice += [end for now in others for end in _endings(now) if end in asked]
    if twice:
        raise ModelUnsupported(
            f"the files hold {twice[0]!r} more than once, behind different names; save the weights of one model alone"
        )
    return names


def _endings(name: str) -> Iterator[str]:
    """What is left of a name behind each of its dots."""
    while "." in name:
        name = name.partition(".")[2]
        yield name


def _without_wrappers(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _without_old_norms(name: str) -> str:
    before, dot, last = name.rpartition(".")
    return f"{before}{dot}{_OLD_NORMS.get(last, last)}"

