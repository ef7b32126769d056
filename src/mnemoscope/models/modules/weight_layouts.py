"""Weights in a folder in another layout than transformers': other file names, wrapped names, nested dicts.

Training code keeps weights behind the names of wrappers (`module.` of DDP, `_orig_mod.` of torch.compile, the attribute
of a Lightning module), inside a checkpoint with an optimizer, in `model.pt`, with the `gamma` and `beta` of old norms,
or as shards without an index. This file reads the tensors and renames them for the model; the caller checks that all
are there. Nothing stored runs.
"""

import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers import GenerationConfig
from transformers.utils.hub import cached_file

from mnemoscope.errors import ModelDamaged, ModelUnsupported

_FILES = (
    *("*.safetensors", "pytorch_model*.bin", "pytorch_model.pt", "pytorch_model.pth", "model.pt", "model.pth"),
    *("model.bin", "model.ckpt", "checkpoint.pt", "checkpoint.pth"),
)
"""Files of weights; of several kinds the first counts."""
_USUAL = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_LEFT_OUT = ("adapter_model", ".")
"""Prefixes of adapters' files, and of hidden ones: `._model.safetensors` is macOS's metadata of a file."""
_NESTED = ("state_dict", "model_state_dict", "model", "module", "network", "net")
_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"}
_OF_WORDS = re.compile(r"(^|\.)(lm_head|embed_out|output|embed_tokens|wte|embed_in|word_embeddings)\.weight$")
_OF_CLASSES = re.compile(r"(^|\.)(score|classifier|v_head|value_head|reward_head|qa_outputs)\.")
_OLD_NORMS = {"gamma": "weight", "beta": "bias"}


def without_wrappers(name: str) -> str:
    """The name of a weight without the names of wrappers of training code in it."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the folder's weights, of one kind; or none."""
    for pattern in _FILES:
        paths = sorted(path for path in folder.glob(pattern) if not path.name.startswith(_LEFT_OUT))
        if paths:
            return paths
    return []


def find_file(place: str, name: str, arguments: Mapping[str, Any]) -> Path | None:
    """A file of a folder or hub id, searched for as transformers' `arguments` say; None if it is missing, or cannot be
    fetched.
    """
    try:
        path = cached_file(place, name, **{key: arguments.get(key) for key in ("revision", "local_files_only")})
    except OSError:
        return None
    return None if path is None else Path(path)


def is_usual(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _USUAL)


def damaged_file(folder: Path) -> str | None:
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
        except Exception:  # any failure of the reader
            return path.name
    return None


def load_stored_otherwise(
    folder: Path, kind: Any, config: Any, *, trust_remote_code: bool
) -> tuple[Any, dict[str, Any]]:
    """The model of a folder, of class `kind`, with the best-fitting names, and loading's notes."""
    with torch.device("meta"):
        empty = kind.from_config(config, trust_remote_code=trust_remote_code)
    stored = _read(weight_files(folder))
    names = fitting_names(stored, wanted=empty.state_dict(), base=empty.base_model_prefix)
    load: Any = type(empty).from_pretrained
    model, notes = load(
        None,
        config=config,
        state_dict={names[name]: tensor for name, tensor in stored.items()},
        dtype="auto",
        output_loading_info=True,
        ignore_mismatched_sizes=True,
    )
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return model, notes


def check_complete(notes: Mapping[str, Any], source: str, *, of_hub: bool) -> None:
    """Raises ModelDamaged or ModelUnsupported, with what to do, for weights that are missing or of other shapes."""
    missing, others = sorted(notes["missing_keys"]), sorted(notes.get("unexpected_keys") or ())
    if wrong := sorted(notes.get("mismatched_keys") or ()):
        name, stored, stated = wrong[0][0], *(tuple(shape) for shape in wrong[0][1:])
        if _OF_WORDS.search(name) and stored[1:] == stated[1:]:
            todo = f'; state "vocab_size": {stored[0]} there, if that is what it has'
        else:
            todo = "; transpose its matrices" if stored == stated[::-1] else "; take its own config.json"
        raise ModelDamaged(f"model {source!r}: its {name!r} is {stored}, but its configuration says {stated}{todo}")
    if not missing:
        return
    text = f"model {source!r} lacks {len(missing)} of its weights, the first is {missing[0]!r}"
    if all(name.startswith(("decoder.", "model.decoder.")) for name in missing):
        raise ModelDamaged(f"{text}; if it is an encoder alone, read it with --side encoder")
    headless = len(missing) == 1 and _OF_WORDS.search(missing[0])
    if headless and (heads := [name for name in others if _OF_CLASSES.search(name)]):
        raise ModelUnsupported(
            f"model {source!r} has a head for classes or rewards ({heads[0]!r}), none for tokens; give the language"
            " model that it was made from"
        )
    if headless and not others:
        tied = (
            'if its head is its embedding, state "tie_word_embeddings": true in config.json; else take a complete copy'
        )
        raise ModelDamaged(f"{text}; {tied}")
    if others:
        advice = (
            "download the repository, since names of wrappers are recognised only in folders"
            if of_hub
            else ("give them the names that transformers has for this model")
        )
        raise ModelDamaged(
            f"{text}, and holds {len(others)} of other names, such as {others[0]!r}; {advice}, or take a complete copy"
        )
    raise ModelDamaged(f"{text}; take a complete copy")


def _read(files: list[Path]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for path in files:
        if path.suffix == ".safetensors":
            tensors |= load_file(path)
        else:
            stored = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
            tensors |= _tensors_of(stored, path)
    return tensors


def _tensors_of(stored: Any, path: Path) -> dict[str, Tensor]:
    seen = stored
    # Inside first: beside the weights a checkpoint may hold other tensors, such as a random generator's state.
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
    """For each stored name the one to read it under. Each change applies to all names, and only if more of them then
    are `wanted`, with or without the prefix `base`.
    """
    accepted = set(wanted)
    accepted |= {name.removeprefix(f"{base}.") for name in accepted}

    def fits(name: str) -> bool:
        return name in accepted or f"{base}.{name}" in accepted

    def better(names: dict[str, str], change: Callable[[str], str]) -> dict[str, str]:
        changed = {name: change(now) for name, now in names.items()}
        return changed if sum(map(fits, changed.values())) > sum(map(fits, names.values())) else names

    names = {name: name for name in stored}
    names = better(names, without_wrappers)
    names = better(names, _without_old_norms)
    stranger = next((now for now in names.values() if not fits(now)), "")
    for prefix in accumulate(f"{part}." for part in stranger.split(".")[:-1]):
        names = better(names, lambda now, prefix=prefix: now.removeprefix(prefix))  # type: ignore[misc]
    twice = [name for name, times in Counter(filter(fits, names.values())).items() if times > 1]
    # A teacher, or an average of the weights, stored beside them under another name.
    twice += [end for now in names.values() if not fits(now) for end in _endings(now) if end in accepted]
    if twice:
        raise ModelUnsupported(
            f"the files hold {twice[0]!r} more than once, behind different names; save the weights of one model alone"
        )
    return names


def _endings(name: str) -> Iterator[str]:
    while "." in name:
        name = name.partition(".")[2]
        yield name


def _without_old_norms(name: str) -> str:
    before, dot, last = name.rpartition(".")
    return f"{before}{dot}{_OLD_NORMS.get(last, last)}"
