"""Opens a transformers model, by name, folder or object, with its tokenizer.

Finds configuration, weights and tokenizer through transformers, and refuses impossible models (no weights, missing
ones, encoders, pickles that run code). Weights are read with safetensors or torch's `weights_only`; a repository's own
code runs only with `trust_remote_code`. adapters.py handles adapters, dequantization.py widens quantised weights.
"""

import copy
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMaskedLM,
    AutoModelForMultimodalLM,
    AutoModelForSeq2SeqLM,
    GgufConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from mnemoscope.errors import ModelDamaged, ModelError, ModelNotFound, ModelUnsupported, OptionError
from mnemoscope.foundation.options.model_options import (
    AS_USUAL,
    ModelOptions,
    check_names,
    local_folder,
    lone_checkpoint,
)
from mnemoscope.foundation.options.strangers import pointer_in, stranger_in
from mnemoscope.foundation.progress import report_loading
from mnemoscope.foundation.reading import Reading
from mnemoscope.models.anatomy.anatomy import check_supported, find_layers, is_masked, numbers_in, text_config
from mnemoscope.models.anatomy.structure import LAYER_COUNTS, infer
from mnemoscope.models.layouts.reading import read_foreign
from mnemoscope.models.loaded_parts import LoadedParts, first_line
from mnemoscope.models.modules.fingerprint import active_adapters
from mnemoscope.models.modules.observed import takes_source
from mnemoscope.models.modules.quiet import suppress_output
from mnemoscope.models.modules.spreading import DeviceMap, Room, load_spread, refuse
from mnemoscope.models.modules.stored_weights import check_format, check_taken
from mnemoscope.models.modules.towers import class_without, outside_towers, takes_more, without_towers
from mnemoscope.models.modules.weight_layouts import check_complete, is_usual, load_stored_otherwise, weight_files
from mnemoscope.models.modules.wrappers import check_whole
from mnemoscope.models.opening.adapters import (
    ADAPTER_CONFIG,
    Adapter,
    base_name,
    base_of,
    check_fits,
    put_adapter,
    read_adapter,
)
from mnemoscope.models.opening.dequantization import check_quantised, dequantize, format_of, widen_at_load
from mnemoscope.models.opening.encoders import EncoderAlone, encoder_alone
from mnemoscope.models.opening.file_words import check_config, check_weights
from mnemoscope.models.opening.gguf_words import SUFFIX, GgufWords, lone_file
from mnemoscope.models.opening.handmade import models as handmade
from mnemoscope.models.opening.hub import one_line_errors, where
from mnemoscope.models.opening.other_tools import held_by_tool
from mnemoscope.models.opening.pairs import as_target, pair_reading
from mnemoscope.models.opening.tokenizer_files import open_tokenizer, reader_of
from mnemoscope.models.proof.company import boundaries_of
from mnemoscope.models.tokens.id_tokens import IDS, IdTokens
from mnemoscope.models.tokens.model_tokens import beginning_of, ends_of, frame_of, mask_of, padding_of

_CONTEXT_ENTRIES = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length"),
    *("n_ctx", "block_size", "context_length", "max_decoder_position_embeddings", "max_target_positions"),
)
_SOURCE_CONTEXT_ENTRIES = ("max_encoder_position_embeddings", "max_source_positions")
_UNSTATED_CONTEXT = 2048
_KINDS: tuple[tuple[Any, Any], ...] = (
    (MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, AutoModelForCausalLM),
    (MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, AutoModelForImageTextToText),
    (MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES, AutoModelForMultimodalLM),
    (MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, AutoModelForSeq2SeqLM),
)
"""transformers' lists of model types, and what makes a model of each; the first that has the type counts."""
_MOST_LAYERS = 10_000
"""A hundred times the depth of the deepest models."""


def open_model(source: Any, *, tokenizer: Any, opening: ModelOptions, room: Room) -> LoadedParts:
    """The transformers model of a hub id, a folder, `builtin:NAME`, `handmade:NAME` or an object in memory. `tokenizer`
    replaces the model's own; `ids`: texts are token ids. A model that does not fit into `room` is spread. Raises
    ModelError, OptionError.
    """
    source, tokenizer = held_by_tool(source, tokenizer)
    source, adapted = base_of(source)
    in_memory, unread = isinstance(source, PreTrainedModel), tuple[str, ...]()
    if isinstance(tokenizer, str | Path) and str(tokenizer) != IDS:
        tokenizer = open_tokenizer(str(tokenizer), where(str(tokenizer), None, opening.trust_remote_code))
    if isinstance(source, str | Path):
        spec = str(source)
        model, own_tokenizer, unread = _from_name(spec, opening, room, with_tokenizer=tokenizer is None)
    elif in_memory:
        if tokenizer is None:
            raise OptionError(
                "a model in memory needs its tokenizer: load_model(model, tokenizer=tokenizer), or 'ids' for none"
            )
        if opening.adapter is not None:
            raise OptionError("an adapter (adapter) goes with a model's name; put it on a model in memory with peft")
        if opening.max_memory is not None:
            raise OptionError("max_memory goes with a model's name; spread a model in memory with accelerate")
        check_supported(source.config)
        check_whole(source)
        own_tokenizer, spec = None, f"memory:{type(source).__name__}{adapted}"
        if opening.dequantize:
            check_quantised(source, spec)
            source, in_memory = dequantize(copy.deepcopy(source), spec), False
        model = encoder_alone(source, opening.side) or _language_model(source)
    else:
        raise OptionError(
            f"no model can be loaded from a {type(source).__name__}; give a hub id, a folder or a transformers model"
        )
    used_tokenizer, config = own_tokenizer if tokenizer is None else tokenizer, text_config(model)
    pairs = takes_source(model)
    tokens = IdTokens() if used_tokenizer == IDS else reader_of(as_target(used_tokenizer) if pairs else used_tokenizer)
    sources = None if not pairs else tokens if used_tokenizer == IDS else reader_of(used_tokenizer)
    alone, context = isinstance(model, EncoderAlone), _context_of(model, config)
    longest_source = next(iter(numbers_in(model.config, _SOURCE_CONTEXT_ENTRIES)), context)
    whole = None
    if alone or is_masked(model.config):
        whole = partial(_whole, used_tokenizer, config, spec, alone=alone)
    return LoadedParts(
        network=model,
        in_memory=in_memory,
        spec=spec,
        name=Path(spec).stem if spec.endswith(SUFFIX) else None,
        opening=opening,
        config=model.config.to_dict() | {"adapters": active_adapters(model) or None},
        tokens=tokens,
        context=longest_source if alone else context,
        anatomy=lambda network: find_layers(network) or infer(network),
        beginning=lambda rows: beginning_of(used_tokenizer, config, tokens, rows=rows),
        padding=lambda rows: padding_of(used_tokenizer, config, tokens, rows=rows),
        boundaries=boundaries_of(config, context),
        unread=unread,
        reading=(lambda rows: pair_reading(model, used_tokenizer)) if pairs else whole,
        sources=sources,
        longest_source=longest_source,
        ends=lambda rows: ends_of(used_tokenizer, config, getattr(model, "generation_config", None), tokens, rows=rows),
    )


def _whole(tokenizer: Any, config: Any, spec: str, rows: int, *, alone: bool) -> Reading:
    """How a masked model, or an encoder alone, reads a sentence."""
    mask = mask_of(tokenizer, config, rows=rows)
    if mask is None and not alone:
        raise ModelUnsupported(f"model {spec!r} reads masked tokens, but its tokenizer has no mask; name another one")
    before, after = frame_of(tokenizer)
    return Reading(before, after, predicts="same", mask=mask)


def _context_of(network: Any, config: Any) -> int:
    """The tokens of the longest input: the stated positions without those up to the padding token's number, behind
    which RoBERTa's kind begins to count.
    """
    stated = next(iter(numbers_in(config, _CONTEXT_ENTRIES)), _UNSTATED_CONTEXT)
    for path, module in network.named_modules():
        padding = getattr(module, "padding_idx", None)
        if (
            path.endswith("position_embeddings")
            and padding is not None
            and getattr(module, "num_embeddings", None) == stated
        ):
            return stated - int(padding) - 1
    return stated


def _from_name(
    source: str, opening: ModelOptions, room: Room, *, with_tokenizer: bool
) -> tuple[Any, Any, tuple[str, ...]]:
    unread: tuple[str, ...]
    adapter = None if opening.adapter is None else read_adapter(opening.adapter)
    load = partial(_load_stored, room=room, with_tokenizer=with_tokenizer, adapter=adapter)
    scheme, separator, name = source.partition(":")
    if separator and scheme == "handmade":
        refuse(opening.max_memory, f"model {source!r}, which is made in memory,")
        (network, tokenizer), unread = handmade.build(name), ()
        if opening.dequantize:
            check_quantised(network, source)
    elif separator and scheme == "builtin":
        usual = replace(opening, revision=None, trust_remote_code=False)
        network, tokenizer, unread = load(str(builtin_folder(name)), source, usual)
    elif source.endswith(SUFFIX) and (file := Path(source).expanduser()).is_file():
        with lone_file(file) as (alone, places):
            with one_line_errors(source):
                words = GgufWords.of(file, source, places)
            network, tokenizer, unread = load(alone, source, opening, words=words)
    elif (checkpoint := lone_checkpoint(source)) is not None:
        refuse(opening.max_memory, f"model {source!r}, which is made in memory,")
        _refuse_pointers(checkpoint.parent)
        with one_line_errors(source):
            network, unread = read_foreign(checkpoint), ()
        tokenizer = None
        if with_tokenizer:
            report_loading("its tokenizer")
            tokenizer = open_tokenizer(str(checkpoint.parent), where(str(checkpoint.parent), None, False))
        if opening.dequantize:
            check_quantised(network, source)
    else:
        folder = local_folder(source)
        if folder is not None:
            _check_folder(folder)
            opening = replace(opening, revision=None)
        network, tokenizer, unread = load(str(folder or source), source, opening)
    if opening.dequantize:
        network = dequantize(network, source)
    if adapter is not None:
        network, place = put_adapter(network, adapter, source)
        if place is not None and with_tokenizer:
            tokenizer = open_tokenizer(place, where(place, None, opening.trust_remote_code))
    return network, tokenizer, unread


def builtin_folder(name: str) -> Path:
    """The packaged folder of `builtin:NAME`."""
    check_names(f"builtin:{name}", AS_USUAL)
    place = Path(__file__).parents[1] / name
    if not (place / "config.json").is_file() or not (place / "model.safetensors").is_file():
        raise ModelNotFound(f"the weights of 'builtin:{name}' are not in this installation; install the package again")
    return place


def _refuse_pointers(folder: Path) -> None:
    if (pointer := pointer_in(folder)) is not None:
        raise ModelDamaged(
            f"{pointer!r} in folder {str(folder)!r} is a pointer of Git LFS, not the file; run git lfs pull there"
        )


def _check_folder(folder: Path) -> None:
    _refuse_pointers(folder)
    if (folder / ADAPTER_CONFIG).is_file() and not (folder / "config.json").is_file():
        raise ModelNotFound(
            f"folder {str(folder)!r} holds an adapter, not a model; give the model that it is made for"
            f" ({base_name(folder)}) and --adapter {folder}"
        )
    try:
        stated, wanted = json.loads((folder / "config.json").read_text(encoding="utf-8")), "an object"
    except (OSError, ValueError, RecursionError) as error:
        stated, wanted = None, f"JSON ({first_line(error)})"
    if not isinstance(stated, dict):
        raise ModelDamaged(
            f"model {str(folder)!r} cannot be read: its config.json is not {wanted}; take a complete copy"
        )
    if not is_usual(folder) and not weight_files(folder):
        todo = stranger_in(folder) or "save the model there first"
        raise ModelNotFound(
            f"folder {str(folder)!r} holds no weights (*.safetensors, pytorch_model*.bin or model.pt); {todo}"
        )


def _load_stored(
    place: str,
    source: str,
    opening: ModelOptions,
    *,
    room: Room,
    with_tokenizer: bool,
    adapter: Adapter | None,
    words: GgufWords | None = None,
) -> tuple[Any, Any, tuple[str, ...]]:
    """Model, tokenizer and the names of the weights not taken; in the stored dtype, spread if larger than `room`."""
    trust = opening.trust_remote_code
    arguments = where(place, opening.revision, trust) | ({} if words is None else {"gguf_file": words.path.name})
    with one_line_errors(source):
        config = AutoConfig.from_pretrained(place, **arguments)
    check_supported(config)
    if not config.return_dict:  # the form of outputs; transformers cannot run its own models without it
        config.return_dict = True
        arguments["config"] = config
    _check_depth(config, source)
    if words is None:
        check_format(config, place, source, arguments)
        check_config(config, place, source, arguments)
    with one_line_errors(source):
        kind = _kind_of(config, trust, whole=adapter is not None)
    stated = None if words is None else words.stated
    if with_tokenizer:
        report_loading("its tokenizer")
    tokenizer = open_tokenizer(place, arguments, source=source, stated=stated) if with_tokenizer else None
    if words is not None:
        with one_line_errors(source):
            words.take(config)
            if tokenizer is not None:
                words.split(tokenizer)
        arguments |= {"quantization_config": GgufConfig(dequantize=True), "config": config}
    elif opening.dequantize:
        widen_at_load(config, source)
        arguments["config"] = config
    if adapter is not None and config.model_type not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        check_fits(adapter, source, kind, config, trust_remote_code=trust)
    spread = _device_map(place, source, kind, config, opening, room, of_file=words is not None)
    # Weights of other shapes are named by check_complete.
    arguments |= {"dtype": "auto", "output_loading_info": True, "ignore_mismatched_sizes": True}
    folder = Path(place) if words is None and Path(place).is_dir() else None
    plain = folder is not None and getattr(config, "quantization_config", None) is None
    report_loading("its weights")
    model: Any = None
    notes: dict[str, Any] = {"missing_keys": ["all"]}
    with one_line_errors(source, folder=folder):
        if folder is None or not plain or is_usual(folder):
            if spread is None:
                model, notes = kind.from_pretrained(place, **arguments)
            else:
                model, notes = load_spread(kind.from_pretrained, place, spread, **arguments)
        in_both = kind is AutoModelForCausalLM and config.model_type in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
        if in_both and spread is None and model is not None and notes["missing_keys"]:  # stored as the other one
            model, notes = _text_half(AutoModelForImageTextToText, config).from_pretrained(place, **arguments)
        encoder = model and encoder_alone(model, opening.side, notes["missing_keys"])
        if folder is not None and plain and notes["missing_keys"] and not encoder:
            refuse(opening.max_memory, f"model {source!r}, whose weights have other names than usual,")
            model = None  # before another one takes memory
            model, notes = load_stored_otherwise(folder, kind, config, trust_remote_code=trust)
            encoder = encoder_alone(model, opening.side, notes["missing_keys"])
    unread = tuple(sorted(notes.get("unexpected_keys") or ()))
    if words is not None:
        words.hold(model)
    left = outside_towers(model, unread)
    check_taken(model, left, place, source, quantised=words is None and format_of(config) is not None)
    if encoder is not None:
        notes = notes | {"missing_keys": []}
    check_complete(notes, source, of_hub=folder is None and words is None)
    check_weights(model, left, source)
    return encoder or _language_model(model), tokenizer, unread


def _language_model(model: Any) -> Any:
    """The language model, where a whole one lies inside of a model that text alone cannot run (BLIP-2, Kosmos-2)."""
    inner = takes_more(model.config) and not takes_source(model)
    parts: Any = (model.get_decoder(), getattr(model, "language_model", None)) if inner else ()
    for inside in parts:
        whole: Any = inside if isinstance(inside, PreTrainedModel) and inside is not model else None
        if whole is not None and whole.get_output_embeddings() is not None:
            check_supported(whole.config)
            return whole
    return model


def _check_depth(config: Any, source: str) -> None:
    """Raises ModelDamaged for so many layers that their modules, even without weights, would fill the memory."""
    parts = (config, *(getattr(config, name, None) for name in config.sub_configs))
    most = max((count for part in parts for count in numbers_in(part, LAYER_COUNTS)), default=0)
    if most > _MOST_LAYERS:
        raise ModelDamaged(
            f"model {source!r} cannot be read: its configuration says {most:,} layers; take a complete copy"
        )


def _kind_of(config: Any, trust: bool, *, whole: bool) -> Any:
    """The class that makes a model of the configuration's type; unless `whole`, without the towers of one that takes
    pictures or sound, too.
    """
    kinds = [kind for types, kind in _KINDS if config.model_type in types]
    if getattr(config, "is_encoder_decoder", False) and AutoModelForSeq2SeqLM in kinds:
        return AutoModelForSeq2SeqLM
    if is_masked(config):
        return AutoModelForMaskedLM
    if trust:
        return AutoModelForCausalLM
    # The text half of a model that sees, saved alone, stands in no list, but names its class (Emu3, Llama 3.2).
    for name in () if kinds else config.architectures or ():
        own = getattr(transformers, name, None)
        if name.endswith("ForCausalLM") and getattr(own, "config_class", None) is type(config):
            return class_without(own, [])
    if not kinds:
        raise ModelUnsupported(
            f"transformers has no class that makes a language model of type {config.model_type!r}; only models that"
            " predict tokens can be read"
        )
    return kinds[0] if whole or not takes_more(config) else _text_half(kinds[0], config)


def _text_half(kind: Any, config: Any) -> Any:
    with suppress_output(), torch.device("meta"):
        return without_towers(kind.from_config(copy.deepcopy(config))) or kind


def _device_map(
    place: str, source: str, kind: Any, config: Any, opening: ModelOptions, room: Room, *, of_file: bool
) -> DeviceMap | None:
    """The placement of a stored model that does not fit its device; None if it fits, or cannot be spread."""
    if of_file or opening.dequantize or getattr(config, "quantization_config", None) is not None:
        refuse(opening.max_memory, f"model {source!r}, which is quantised,")
        return None
    files = weight_files(Path(place).expanduser())
    stored = sum(file.stat().st_size for file in files) if files else None
    try:
        with one_line_errors(source):
            spread = room.device_map(kind, config, stored=stored, trust=opening.trust_remote_code)
    except ModelError:
        if room.is_bounded:
            raise
        return None
    if spread is not None and opening.adapter is not None:
        refuse(opening.max_memory, f"model {source!r} with an adapter")
        return None
    return spread
