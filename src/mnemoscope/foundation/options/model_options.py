"""How a MODEL is opened, beside its name: one set of options for every verb, for `load_model` and for the plan.

The command line fills `ModelOptions`, `load_model` builds one from its arguments, a mining plan stores the options that
decide numbers, and every command or script shown to a reader is made from it. Knows no model, and needs no torch.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mnemoscope.errors import ModelNotFound, OptionError
from mnemoscope.foundation.options.declared import DeclaredOptions, option
from mnemoscope.foundation.options.strangers import parts_of, stranger_in

_SCHEMES = ("builtin:", "handmade:", "hub:", "memory:")
_FAIRSEQ = "fairseq:"
_LONE = (".pt", ".pth", ".bin")
_LONE_NAME = "ckpt.pt"
"""What nanoGPT and llama2.c call the checkpoint that they write."""
BUILTIN = ("pydocs",)
TRAINED = "model"
"""The model's folder in the folder that `train` writes."""
SIDES = ("decoder", "encoder")
_GIVE = {
    "adapter": "the folder of a saved adapter, or its hub id",
    "tokenizer": "the folder of a saved tokenizer, or its hub id",
}


def is_path(name: str, *, of_text: bool = False) -> bool:
    """Whether a name looks like a path; a relative one of two parts looks like a hub id."""
    return not name.startswith(_SCHEMES) and (
        of_text
        or name.startswith((".", "/", "~", _FAIRSEQ))
        or name.count("/") > 1
        or "\\" in name
        or name.endswith((".gguf", *_LONE))
    )


def display_name(name: str, *, of_text: bool = False) -> str:
    """The name that readers see of a model, an adapter, a tokenizer or a text: of a path (`is_path`) its last part."""
    scheme = _FAIRSEQ if name.startswith(_FAIRSEQ) else ""
    parts = [part for part in re.split(r"[/\\]", name.removeprefix(scheme)) if part]
    return scheme + parts[-1] if parts and is_path(name, of_text=of_text) else name


def full_name(name: str, *, of_text: bool = False) -> str:
    """The name as it opens from every folder of this machine: a path becomes absolute, any other name stays."""
    scheme = _FAIRSEQ if name.startswith(_FAIRSEQ) else ""
    path = os.path.abspath(os.path.expanduser(name.removeprefix(scheme)))
    known = os.path.exists(path) or is_path(name, of_text=of_text)
    return scheme + path if known and not name.startswith(_SCHEMES) else name


def lone_checkpoint(name: str) -> Path | None:
    """The file that a name is if it is a checkpoint of a small training code (nanoGPT, llama2.c): the file itself, or
    `ckpt.pt` in a folder without other weights.
    """
    path = Path(name).expanduser()
    if path.suffix in _LONE and path.is_file():
        return path
    inside = path / _LONE_NAME
    others = any(any(path.glob(pattern)) for pattern in ("*.safetensors", "*.bin", "model.*"))
    return inside if inside.is_file() and not others else None


def local_folder(name: str) -> Path | None:
    """The folder of a model: the one named, or `model` in one that training wrote; None for a hub id. Raises
    ModelNotFound for a name that is no hub id either.
    """
    if not name.strip():
        raise ModelNotFound("the model's name is empty; give a hub id or a folder")
    folder = Path(name).expanduser()
    if folder.is_dir():
        places = ((folder, "config.json"), (folder, "adapter_config.json"), (folder / TRAINED, "config.json"))
        found = next((place for place, mark in places if (place / mark).is_file()), None)
        if found is None:
            todo = stranger_in(folder) or "give the folder of a saved model"
            raise ModelNotFound(f"folder {str(folder)!r} holds no config.json; {todo}")
        return found
    if folder.exists():
        raise ModelNotFound(
            f"{name!r} is a file; give the folder that holds config.json and the weights, a .gguf, or a checkpoint of"
            " nanoGPT or llama2.c"
        )
    if is_path(name) or ":" in name:
        raise ModelNotFound(f"no folder {name!r}; give a folder with config.json and weights, or a hub id")
    return None


def check_names(model: str, opening: "ModelOptions") -> None:
    """Raises ModelNotFound for names that nothing can have, without torch; opening the model tells the rest."""
    scheme, separator, name = model.partition(":")
    if separator and scheme == "builtin" and name not in BUILTIN:
        raise ModelNotFound(f"no built-in model {name!r}; there is {', '.join(f'builtin:{one}' for one in BUILTIN)}")
    stored = model.endswith(".gguf") and Path(model).expanduser().is_file()
    if stored and (parts := parts_of(model)) > 1:
        raise ModelNotFound(
            f"{model!r} is one of {parts} parts, which are not read; join them with llama.cpp's"
            " `llama-gguf-split --merge`, and name the file that it writes"
        )
    stored = stored or lone_checkpoint(model) is not None
    if not stored and not (separator and scheme in ("builtin", "handmade", "fairseq")):
        local_folder(model)
    for field, give in _GIVE.items():
        given = getattr(opening, field)
        if given is not None and is_path(given) and not os.path.exists(os.path.expanduser(given)):
            raise ModelNotFound(f"no folder {given!r}; give {give}")


def write_max_memory(given: str | Mapping[int | str, int | str] | None) -> str | None:
    """The option as text, of `{0: "20GiB", "cpu": "60GiB"}` or a text; numbers count bytes."""
    if not isinstance(given, Mapping):
        return f"{given}B" if isinstance(given, int) else given
    return ",".join(f"{device}={f'{size}B' if isinstance(size, int) else size}" for device, size in given.items())


_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_max_memory(text: str) -> dict[int | str | None, int]:
    """Bytes by card number or `cpu`, of `0=20GiB,cpu=60GiB`; by None for a single size."""
    sizes: dict[int | str | None, int] = {}
    for piece in text.split(","):
        name, separator, size = piece.rpartition("=")
        name = name.strip().lower().removeprefix("cuda:")
        device = int(name) if re.fullmatch(r"[0-9]{1,4}", name) else (name if separator else None)
        bytes_ = _bytes_of(size)
        known = device is None or device == "cpu" or isinstance(device, int)
        if bytes_ is None or not known or device in sizes or (device is None and "," in text):
            raise OptionError(
                f"--max-memory {text!r} does not say how much of which device; write 2GiB, or 0=20GiB,cpu=60GiB"
                " (a card's number, or cpu; the disk takes the rest)"
            )
        sizes[device] = bytes_
    return sizes


def _bytes_of(size: str) -> int | None:
    """The bytes of `20GiB` (powers of 1,024) or `20GB` (of 1,000); None where it is no size."""
    match = re.fullmatch(r"\s*([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([KMGT]?)(I?)B\s*", size, re.ASCII | re.IGNORECASE)
    if match is None or (match[3] and not match[2]):
        return None
    return int(float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2].upper()])


class ModelArgument(DeclaredOptions):
    model: str = option(
        help="A hub id (gpt2), a folder, a .gguf file, a ckpt.pt, builtin:pydocs, fairseq:PATH.pt, or handmade:NAME.",
        argument=True,
    )


class ModelOptions(DeclaredOptions):
    """How a model is opened, beside its name, number format and device; every option may be left out. A plan stores
    the planned ones; it knows `dict.txt` by its content, and code by its text.
    """

    adapter: str | None = option(None, "A PEFT adapter (LoRA and others) to put on the model.", metavar="ID|FOLDER")
    tokenizer: str | None = option(
        None,
        "The tokenizer, if the model has none or needs another; ids: texts are token ids.",
        metavar="ID|FOLDER",
    )
    beginning: str | None = option(
        None,
        "The token before every sentence, if not the model's own; none: nothing.",
        metavar="none|TOKEN",
    )
    side: str | None = option(
        None,
        "The half of an encoder-decoder that is read; of an encoder the keys alone.",
        choices=SIDES,
        instead="decoder",
    )
    dequantize: bool = option(False, "Widen quantised weights at load.")
    revision: str | None = option(None, "The hub model's revision.", metavar="NAME")
    dictionary: Path | str | None = option(
        None, "A fairseq model's dict.txt, if it is elsewhere.", metavar="FILE", keyword="dict", planned=False
    )
    trust_remote_code: bool = option(False, "Run code that comes with the model.", planned=False)
    max_memory: str | None = option(
        None,
        "Memory for weights: 2GiB, or 0=20GiB,cpu=60GiB; the rest of the model goes to disk.",
        metavar="SIZE",
        check=parse_max_memory,
        planned=False,
    )

    def __post_init__(self) -> None:
        # In Python a path and a mapping stand for these.
        object.__setattr__(self, "adapter", None if self.adapter is None else str(self.adapter))
        object.__setattr__(self, "max_memory", write_max_memory(self.max_memory))
        super().__post_init__()

    def spec_of(self, source: str) -> str:
        """The model's name with its adapter, and its half: `gpt2+my-adapter`, `t5-small (encoder)`."""
        source = source if self.adapter is None else f"{source}+{self.for_display().adapter}"
        return f"{source} (encoder)" if self.side == "encoder" else source

    def for_display(self) -> "ModelOptions":
        named = {name: str(value) for name in NAMED if (value := getattr(self, name)) is not None}
        shown: dict[str, Any] = {name: display_name(full_name(value)) for name, value in named.items()}
        return replace(self, **shown)

    def words(self) -> list[str]:
        """The options that are not at their defaults, as words of a command line, unquoted."""
        return self.words_of(vars(self))

    def python_line(self, source: str) -> str:
        """The line of a Python script that opens the model `source` with these options, as `model`."""
        arguments = [repr(source), *(f"{name}={value!r}" for name, value in self.keywords().items())]
        return f"model = ms.load_model({', '.join(arguments)})"

    def or_planned(self, plan: Mapping[str, Any]) -> "ModelOptions":
        """These options, with those left out taken from a plan, or from the paths beside it."""
        names = (ModelOptions.planned_names() | {"dictionary"}) & plan.keys()
        return replace(self, **{name: plan[name] for name in names if getattr(self, name) in (None, False)})


AS_USUAL = ModelOptions()
NAMED = ("adapter", "tokenizer", "dictionary")
