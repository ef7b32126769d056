"""A checkpoint of fairseq, the paper's own format: `fairseq:PATH.pt` -> a readable network.

Turns a checkpoint's options and weights, in old or new spelling, into the network of fairseq_decoder.py, under the
format's names. Unknown options are refused, and so are extra or missing weights, and weights of another shape.
checkpoint.py reads the files safely.
"""

import re
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from mnemoscope.errors import ModelDamaged, ModelNotFound, ModelUnsupported
from mnemoscope.models.anatomy.anatomy import Anatomy, resolve_layer
from mnemoscope.models.anatomy.families import Family
from mnemoscope.models.loaded_parts import LoadedParts
from mnemoscope.models.modules.fairseq_decoder import ACTIVATIONS, DecoderShape, Network
from mnemoscope.models.modules.fingerprint import check_finite
from mnemoscope.models.modules.quiet import suppress_output
from mnemoscope.models.opening.fairseq.checkpoint import END, read_checkpoint, read_dictionary
from mnemoscope.models.opening.fairseq.options import Options, shape_of
from mnemoscope.models.tokens.model_tokens import Beginning

_NOT_WEIGHTS = re.compile(r"(^|\.)(_float_tensor|version)$|^decoder\.embed_positions\.weights$")
_NORMS = re.compile(r"(decoder\.layers\.[0-9]+\.)layer_norms\.([0-9]+)\.(weight|bias)")
_FUSED = re.compile(r"(decoder\.layers\.[0-9]+\.self_attn\.)in_proj_(weight|bias)")


def open_checkpoint(source: str, *, dictionary: Path | None) -> LoadedParts:
    """The model of `fairseq:PATH.pt`, with the given dictionary or the `dict.txt` beside it."""
    name = source.removeprefix("fairseq:").strip()
    if not name:
        raise ModelNotFound("the checkpoint's name is empty; give fairseq:PATH.pt")
    path = Path(name).expanduser()
    options, stored = read_checkpoint(path)
    weights = current_names(stored)
    where = f"checkpoint {str(path)!r}"
    shape = shape_of(Options(options, where), weights, version=_version(stored, where))
    place = path.parent / "dict.txt" if dictionary is None else dictionary
    words = read_dictionary(place)
    if len(words) != shape.rows:
        raise ModelDamaged(
            f"dictionary {str(place)!r} has {len(words)} words (its 4 special ones counted), the checkpoint has rows "
            f"for {shape.rows}; give the checkpoint's own dict.txt (--dict)"
        )
    return LoadedParts(
        network=build(shape, weights, where),
        in_memory=False,
        spec=source,
        config=asdict(shape),
        tokens=words,
        context=shape.context,
        anatomy=anatomy_of,
        beginning=lambda rows: Beginning(END, "end-of-text"),
        ends=lambda rows: frozenset({END}),
    )


def current_names(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights under their current names, without buffers that hold no weights (some are uninitialised memory)."""
    weights: dict[str, Tensor] = {}
    norms: dict[str, list[int]] = {}
    for name, tensor in stored.items():
        if _NOT_WEIGHTS.search(name):
            continue
        if fused := _FUSED.fullmatch(name):
            for part, rows in zip("qkv", tensor.chunk(3), strict=False):
                weights[f"{fused[1]}{part}_proj.{fused[2]}"] = rows
        elif old := _NORMS.fullmatch(name):
            norms.setdefault(old[1], []).append(int(old[2]))
        else:
            weights[name] = tensor
    for block, numbers in norms.items():
        # The second of three norms would belong to attention to an encoder, which a language model lacks.
        for number, norm in ((min(numbers), "self_attn_layer_norm"), (max(numbers), "final_layer_norm")):
            for part in ("weight", "bias"):
                if (name := f"{block}layer_norms.{number}.{part}") in stored:
                    weights[f"{block}{norm}.{part}"] = stored[name]
    if "decoder.embed_out" in weights:
        weights["decoder.output_projection.weight"] = weights.pop("decoder.embed_out")
    return weights


def _version(stored: dict[str, Tensor], where: str) -> int:
    """The decoder's version, by default 1; refuses the first layout of the adaptive softmax."""
    softmax = any(name.startswith("decoder.adaptive_softmax.") for name in stored)
    if softmax and "decoder.adaptive_softmax.version" not in stored:
        raise ModelUnsupported(
            f"{where} has no 'decoder.adaptive_softmax.version': an adaptive softmax of the first "
            "layout, which fairseq itself no longer reads"
        )
    version = stored.get("decoder.version")
    return 1 if version is None or version.numel() != 1 else int(version.item())


def build(shape: DecoderShape, weights: dict[str, Tensor], where: str) -> Network:
    """The network with the checkpoint's weights, float32."""
    if not shape.final_norm:
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith("decoder.layer_norm.")}
    if shape.output_bands is None and shape.tied_words and "decoder.embed_tokens.weight" in weights:
        weights.setdefault("decoder.output_projection.weight", weights["decoder.embed_tokens.weight"])
    last = f"decoder.layers.{shape.layers - 1}.fc1.weight"
    if last not in weights:  # before a network of that many layers is made
        raise ModelDamaged(f"{where} lacks {last!r}, although its options say {shape.layers} layers")
    with torch.device("meta"), suppress_output():  # torch warns of a band of width 0
        network = Network(shape)
    network.requires_grad_(False)
    wanted = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
    missing, strange = wanted.keys() - weights.keys(), weights.keys() - wanted.keys()
    if missing:
        raise ModelDamaged(
            f"{where} lacks {len(missing)} of the weights that its options name, the first is "
            f"{min(missing)!r}; take a complete copy"
        )
    if strange:
        raise ModelUnsupported(
            f"{where} has {len(strange)} weights that its options do not name, the first is "
            f"{min(strange)!r}; only plain decoder language models can be read"
        )
    for name, expected in wanted.items():
        if tuple(weights[name].shape) != expected:
            raise ModelDamaged(f"{where}: weight {name!r} is {tuple(weights[name].shape)}, its options say {expected}")
        if not weights[name].is_floating_point():
            raise ModelUnsupported(f"{where}: weight {name!r} is {weights[name].dtype}, not numbers")
    layout = torch.contiguous_format
    tensors = {name: weights[name].to(torch.float32, copy=True, memory_format=layout) for name in wanted}
    network.load_state_dict(tensors, assign=True)
    check_finite(network)
    _tie(network, where)
    return network.eval()


def _tie(network: Network, where: str) -> None:
    """Makes tied weights, which the file holds as copies, one tensor."""
    shape = network.shape
    pairs = []
    if shape.tied_words and shape.output_bands is None:
        pairs.append(("decoder.output_projection", "decoder.embed_tokens"))
    elif shape.tied_words and shape.output_bands is not None:
        words = "decoder.embed_tokens.embeddings"
        pairs.append(("decoder.adaptive_softmax.head.word_proj", f"{words}.0.0"))
        for band in range(1, len(shape.output_bands.edges)):
            tail = f"decoder.adaptive_softmax.tail.{band - 1}"
            pairs.append((f"{tail}.2", f"{words}.{band}.0"))
            if shape.tied_projections:
                pairs.append((f"{tail}.0", f"{words}.{band}.1"))
    for copy, original in pairs:
        weight = network.get_parameter(f"{original}.weight")
        if not torch.equal(network.get_parameter(f"{copy}.weight"), weight):
            raise ModelDamaged(f"{where}: its options tie {copy!r} to {original!r}, but their weights differ")
        network.get_submodule(copy).register_parameter("weight", weight)


def anatomy_of(network: Network) -> Anatomy:
    decoder, shape = network.decoder, network.shape
    row = Family(
        "fairseq",
        blocks="decoder.layers",
        keys="fc1",
        down="fc2",
        activation=ACTIVATIONS[shape.activation],
        ffn_norm="final_layer_norm" if shape.pre_norm else None,
        output_norm=None if shape.pre_norm else "final_layer_norm",
    )
    return Anatomy(
        family=row.name,
        model=network,
        backbone=decoder,
        layers=tuple(resolve_layer(block, row) for block in decoder.layers),
        final_norm=decoder.layer_norm,
        project=decoder.project_out_dim,
        head=network.head(),
        activation=shape.activation,
        two_level=decoder.adaptive_softmax,
    )
