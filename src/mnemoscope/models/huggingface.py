"""A transformers model, by name, folder or object, opened with its tokenizer.

Finds configuration, weights and tokenizer through transformers, and refuses what cannot be right (no weights, missing
ones, encoders, pickles that run code). Weights are read with safetensors or torch's `weights_only`; a repository's own
code runs only where `trust_remote_code` was asked for. Adapters are the business of adapters.py, quantised weights that
are to be widened that of dequantization.py.
"""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.models.auto.tokenization_auto import get_tokenizer_config

from mnemoscope.errors import ModelDamaged, ModelNotFound, ModelUnsupported, OptionError
from mnemoscope.model_options import ModelOptions
from mnemoscope.models import handmade
from mnemoscope.models.adapters import ADAPTER_CONFIG, base_name, base_of, put_adapter
from mnemoscope.models.anatomy import check_supported, find_layers, text_config
from mnemoscope.models.dequantization import check_quantised, dequantize, format_of, widen_at_load
from mnemoscope.models.fingerprint import active_adapters
from mnemoscope.models.gguf_file import SUFFIX, has_tokenizer, lone_file
from mnemoscope.models.hub import one_line_errors, where
from mnemoscope.models.loaded_parts import LoadedParts
from mnemoscope.models.structure import infer
from mnemoscope.models.tokens import Tokens, beginning_of, ends_of
from mnemoscope.models.wrappers import check_whole

BUILTIN = ("pydocs",)
"""The language models that ship with the package."""

_CONTEXT_ENTRIES = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
_UNSTATED_CONTEXT = 2048

_PLAIN_TOKENIZERS = ("PreTrainedTokenizerFast", "TokenizersBackend")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_TOKENIZERS = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "*.tiktoken", "tekken.json"),
)

def open_model(source: Any, *, tokenizer: Any, opening: ModelOptions) -> LoadedParts:
    """The transformers model of a hub id, a local folder, `builtin:NAME`, `handmade:NAME` or an object in memory.

    `tokenizer` (an object, or what `opening` names) takes the place of the model's own. Raises ModelNotFound,
    ModelUnsupported, ModelDamaged, OptionError.
    """
    source, adapted = base_of(source)
    own = isinstance(source, PreTrainedModel)
    if isinstance(tokenizer, str | Path):
        tokenizer = _tokenizer(str(tokenizer), where(str(tokenizer), None, opening.trust_remote_code))
    if isinstance(source, str | Path):
        model, own_tokenizer, spec = _from_name(str(source), opening, with_tokenizer=tokenizer is None)
    elif own:
        if tokenizer is None:
            raise OptionError("a model in memory needs its tokenizer: load_model(model, tokenizer=tokenizer)")
        if opening.adapter is not None:
            raise OptionError("an adapter (adapter) goes with a model's name; put it on a model in memory with peft")
        check_supported(source.config)
        check_whole(source)
        model, own_tokenizer, spec = source, None, f"memory:{type(source).__name__}{adapted}"
        if opening.dequantize:
            check_quantised(source, spec)
            model, own = dequantize(copy.deepcopy(source), spec), False
    else:
        raise OptionError(
            f"no model can be loaded from a {type(source).__name__}; give a hub id, a folder or a transformers model"
        )
    found = own_tokenizer if tokenizer is None else tokenizer
    tokens, config = Tokens(found), text_config(model)
    return LoadedParts(
        network=model,
        own=own,
        spec=spec,
        opening=opening,
        config=model.config.to_dict() | {"adapters": active_adapters(model) or None},
        tokens=tokens,
        context=_context(config),
        anatomy=lambda network: find_layers(network) or infer(network),
        beginning=lambda rows: beginning_of(found, config, tokens, rows=rows),
        ends=lambda rows: ends_of(found, config, getattr(model, "generation_config", None), tokens, rows=rows),
    )


def _context(config: Any) -> int:
    stated = (getattr(config, name, None) for name in _CONTEXT_ENTRIES)
    return next((value for value in stated if isinstance(value, int) and value > 0), _UNSTATED_CONTEXT)


def _from_name(source: str, opening: ModelOptions, *, with_tokenizer: bool) -> tuple[Any, Any, str]:
    """Model, tokenizer (None where it is not wanted) and spec of a name."""
    scheme, separator, name = source.partition(":")
    if separator and scheme == "handmade":
        network, tokenizer = handmade.build(name)
        if opening.dequantize:
            check_quantised(network, source)
    elif separator and scheme == "builtin":
        usual = replace(opening, revision=None, trust_remote_code=False)
        network, tokenizer = _load_stored(str(builtin_folder(name)), source, usual, with_tokenizer)
    elif source.endswith(SUFFIX) and (file := Path(source).expanduser()).is_file():
        with lone_file(file) as folder:
            network, tokenizer = _load_stored(folder, source, opening, with_tokenizer, gguf_file=file.name)
    else:
        place, of_hub = _place_of(source)
        opening = opening if of_hub else replace(opening, revision=None)
        network, tokenizer = _load_stored(place, source, opening, with_tokenizer)
    if opening.dequantize:
        network = dequantize(network, source)
    if opening.adapter is not None:
        network = put_adapter(network, opening.adapter, source)
    return network, tokenizer, source


def _place_of(source: str) -> tuple[str, bool]:
    """The folder or hub id that a name means, and whether it is the hub's; raises ModelNotFound."""
    if not source.strip():
        raise ModelNotFound("the model's name is empty; give a hub id or a folder")
    folder = Path(source).expanduser()
    if folder.is_dir():
        _check_folder(folder)
        return str(folder), False
    if folder.exists():
        raise ModelNotFound(f"{source!r} is a file; give the folder that holds config.json and the weights, or a .gguf")
    if source.startswith((".", "/", "~")) or source.count("/") > 1 or ":" in source:
        raise ModelNotFound(f"no folder {source!r}; give a folder with config.json and weights, or a hub id")
    return source, True


def builtin_folder(name: str) -> Path:
    """The packaged folder of `builtin:NAME`; raises ModelNotFound for a name or weights that are not there."""
    if name not in BUILTIN:
        raise ModelNotFound(
            f"no built-in model {name!r}; there is {', '.join(f'builtin:{known}' for known in BUILTIN)}"
        )
    place = Path(__file__).parent / name
    if not (place / "config.json").is_file() or not (place / "model.safetensors").is_file():
        raise ModelNotFound(f"the weights of 'builtin:{name}' are not in this installation; install the package again")
    return place


def _check_folder(folder: Path) -> None:
    if (folder / ADAPTER_CONFIG).is_file() and not (folder / "config.json").is_file():
        raise ModelNotFound(
            f"folder {str(folder)!r} holds an adapter, not a model; give the model that it is made for"
            f" ({base_name(folder)}) and --adapter {folder}"
        )
    if not (folder / "config.json").is_file():
        raise ModelNotFound(f"folder {str(folder)!r} holds no config.json; give the folder of a saved model")
    if not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
        raise ModelNotFound(f"folder {str(folder)!r} holds no weights (*.safetensors); save the model there first")


def _load_stored(
    place: str, source: str, opening: ModelOptions, with_tokenizer: bool, *, gguf_file: str | None = None
) -> tuple[Any, Any]:
    """Model and tokenizer as stored in a folder, in a file there, or on the hub, in the stored dtype."""
    trust = opening.trust_remote_code
    arguments = where(place, opening.revision, trust) | ({} if gguf_file is None else {"gguf_file": gguf_file})
    with one_line_errors(source):
        config = AutoConfig.from_pretrained(place, **arguments)
    check_supported(config)
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not trust:
        raise ModelUnsupported(f"model type {config.model_type!r} is no causal language model that transformers knows")
    tokenizer = _tokenizer(place, arguments, source=source) if with_tokenizer else None
    if gguf_file is not None:
        arguments["quantization_config"] = GgufConfig(dequantize=True)
    elif opening.dequantize:
        widen_at_load(config, source)
        arguments["config"] = config
    load: Any = AutoModelForCausalLM.from_pretrained
    with one_line_errors(source, packed=format_of(config)):
        model, notes = load(place, dtype="auto", output_loading_info=True, **arguments)
    missing = sorted(notes["missing_keys"])
    if missing:
        raise ModelDamaged(
            f"model {source!r} lacks {len(missing)} of its weights, the first is {missing[0]!r}; take a complete copy"
        )
    return model, tokenizer


def _tokenizer(place: str, arguments: dict[str, Any], *, source: str | None = None) -> Any:
    """The tokenizer of a folder, of a file there, or of a hub id: that of a model (`source`), or one alone."""
    folder, file = Path(place).expanduser(), arguments.get("gguf_file")
    has_one = has_tokenizer(folder / file) if file else any(any(folder.glob(pattern)) for pattern in _TOKENIZERS)
    if folder.is_dir() and not has_one:
        name = f"folder {place!r}" if file is None else repr(source)
        raise ModelNotFound(f"{name} holds no tokenizer; name a folder or hub id that does as --tokenizer")
    if folder.is_file():
        raise ModelNotFound(f"tokenizer {place!r} is a file; give the folder that holds it")
    with one_line_errors(source or place, what="tokenizer" if source is None else "model"):
        # Some model types make AutoTokenizer build that family's own splitting rules around the stored vocabulary,
        # even where the tokenizer says that its tokenizer.json is all there is to it.
        stated = get_tokenizer_config(place, **arguments).get("tokenizer_class")
        kind: Any = PreTrainedTokenizerFast if stated in _PLAIN_TOKENIZERS else AutoTokenizer
        return kind.from_pretrained(place, **arguments)
