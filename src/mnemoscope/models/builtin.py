"""The language models that ship with the package: where their weights lie. Loading them is huggingface.py's job."""

from pathlib import Path

from mnemoscope.errors import ModelNotFound

BUILTIN = ("pydocs",)


def folder(name: str) -> Path:
    """The packaged folder of `builtin:NAME`; raises ModelNotFound for a name or weights that are not there."""
    if name not in BUILTIN:
        raise ModelNotFound(
            f"no built-in model {name!r}; there is {', '.join(f'builtin:{known}' for known in BUILTIN)}"
        )
    place = Path(__file__).parent / name
    if not (place / "config.json").is_file() or not (place / "model.safetensors").is_file():
        raise ModelNotFound(f"the weights of 'builtin:{name}' are not in this installation; install the package again")
    return place
