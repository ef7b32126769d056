"""Checks what a model's files hold beside the weights that it took, and refuses unread packed formats.

transformers ignores formats of quantised weights that it does not know, and scales that no module requests; an
eight-bit matrix is then read as if its numbers were weights. So the format must be a known one, the files are compared
with the model by name, and a matrix of eight-bit floats or integers must have scales in use.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from mnemoscope.errors import ModelUnsupported
from mnemoscope.foundation.files import read_object
from mnemoscope.models.modules.linear_maps import is_plain
from mnemoscope.models.modules.weight_layouts import find_file, weight_files

_BESIDE = "hf_quant_config.json"
"""Where NVIDIA's ModelOpt describes its format, beside or in place of the configuration."""
_SCALES = re.compile(
    r"[._](weight_scale(_inv|_2)?|(input|output|activation)_scale|scales?|scale_inv|(weight_)?zero_points?|zeros|qzeros|"
    r"qweight|weight_packed|weight_shape|(weight_)?g_idx|(nested_)?absmax|(nested_)?quant_map|quant_state\.\w+|SCB|"
    r"weight_format|biases|packed|q_weight|q_scale(_max)?|q_groups|q_invperm|suh|svh|trellis|codebooks?|codes)$"
)
"""Names of the tensors that packed formats store beside their matrices."""
_MATRIX = re.compile(r"(weight|_proj|experts\.\w+)$")
_WHOLE = {
    *("F4", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"),
    *("I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64"),
}
_SOURCE = "use the original model, before it was quantised"


def check_format(config: Any, place: str, source: str, arguments: dict[str, Any]) -> None:
    """Raises ModelUnsupported, naming it, for a format of quantised weights that transformers does not know."""
    parts = [config, *(getattr(config, name, None) for name in config.sub_configs)]
    entries = [
        getattr(part, "quantization_config", None) or getattr(part, "compression_config", None) for part in parts
    ]
    stated = next((entry for entry in entries if isinstance(entry, dict)), None)
    if stated is None and not getattr(config, "quantization", None):
        path = find_file(place, _BESIDE, arguments)
        if path is not None:
            beside = read_object(path).get("quantization")
            stated = {"quant_method": "modelopt", "quant_algo": isinstance(beside, dict) and beside.get("quant_algo")}
    elif stated is None or "quant_method" not in stated:
        mlx = getattr(config, "quantization", None)
        stated = {"quant_method": "MLX", **mlx} if isinstance(mlx, dict) else stated
    if stated is None or stated.get("load_in_4bit") or stated.get("load_in_8bit"):  # bitsandbytes
        return
    method, kind = str(stated.get("quant_method")), str(stated.get("quant_algo") or stated.get("format") or "")
    if method in AUTO_QUANTIZATION_CONFIG_MAPPING:
        return
    named = f"{method} ({kind})" if kind and kind != "None" else method
    raise ModelUnsupported(
        f"the weights of {source!r} are packed in a format that transformers cannot read, {named}: it would take them"
        f" for plain numbers; {_SOURCE}"
    )


def check_taken(network: Any, unread: Iterable[str], place: str, source: str, *, quantised: bool) -> None:
    """Raises ModelUnsupported if the model computes with packed numbers, or left scales among the `unread`."""
    if scales := sorted(name for name in unread if _SCALES.search(name)):
        raise ModelUnsupported(
            f"model {source!r} does not use {len(scales)} of its weights that look like scales of packed ones, such as"
            f" {scales[0]!r}, so the numbers of the others are not its weights; {_SOURCE}"
        )
    for path, module in network.named_modules():
        if is_plain(module) and module.weight.dtype.itemsize == 1:
            raise _unscaled_error(source, f"{path}.weight", str(module.weight.dtype).removeprefix("torch."))
    if not quantised and (packed := _first_packed(place)) is not None:
        raise _unscaled_error(source, *packed)


def _unscaled_error(source: str, name: str, kind: str) -> ModelUnsupported:
    return ModelUnsupported(
        f"model {source!r} holds {name!r} in {kind}, and nothing that says what its numbers stand for (no"
        f" quantization_config, or no scales); {_SOURCE}"
    )


def _first_packed(place: str) -> tuple[str, str] | None:
    """The first matrix of eight-bit floats or integers in safetensors files, and its format; or None."""
    folder = Path(place)
    if not folder.is_dir():
        at = find_file(place, "config.json", {"local_files_only": True})
        folder = at.parent if at is not None else folder
    for path in weight_files(folder):
        if path.suffix == ".safetensors":
            with path.open("rb") as file:
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            for name, entry in header.items():
                if _MATRIX.search(name) and len(entry["shape"]) > 1 and entry["dtype"] in _WHOLE:
                    return name, entry["dtype"]
    return None
