"""A transformers model, by name, folder or object, opened with its tokenizer.

Finds configuration, weights and tokenizer through transformers, refuses what cannot be right (no weights, missing or
non-finite weights, encoders, pickles that run code), and silences the library. Weights are read with safetensors or
torch's `weights_only`; a repository's own code runs only where `trust_remote_code` was asked for.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants as hub
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.models.auto.tokenization_auto import get_tokenizer_config

from mnemoscope.errors import ModelDamaged, ModelError, ModelNotFound, ModelUnsupported, OptionError
from mnemoscope.models import handmade
from mnemoscope.models.anatomy import check_supported, find_layers, text_config
from mnemoscope.models.fingerprint import active_adapters
from mnemoscope.models.linear_maps import is_of_adapters
from mnemoscope.models.loaded_parts import LoadedParts, first_line, suppress_output
from mnemoscope.models.structure import infer
from mnemoscope.models.tokens import Tokens, beginning_of, ends_of

BUILTIN = ("pydocs",)
"""The language models that ship with the package."""

_CONTEXT_ENTRIES = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
_UNSTATED_CONTEXT = 2048

_PLAIN_TOKENIZERS = ("PreTrainedTokenizerFast", "TokenizersBackend")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_TOKENIZERS = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "*.tiktoken", "tekken.json"),
)

_FAILURES = (
    ("Weights only load failed", ModelUnsupported,
     ": its weights are a pickle that wants to run code; save them as safetensors"),
    ("ignore_mismatched_sizes", ModelDamaged, ": its weights are not of the shapes that its config.json says"),
    ("trust_remote_code", ModelUnsupported,
     " brings its own code; pass trust_remote_code (--trust-remote-code) if you trust it"),
)  # fmt: skip
"""What an error of transformers says, and what is said of the model in its place."""


def open_model(source: Any, *, tokenizer: Any, revision: str | None, trust_remote_code: bool) -> LoadedParts:
    """The transformers model of a hub id, a local folder, `builtin:NAME`, `handmade:NAME` or an object in memory.

    `tokenizer` (an object, a folder or a hub id) takes the place of the model's own. Raises ModelNotFound,
    ModelUnsupported, ModelDamaged, OptionError.
    """
    source, adapted = _inside_adapters(source)
    own = isinstance(source, PreTrainedModel)
    if isinstance(source, str | Path):
        model, own_tokenizer, spec = _from_name(str(source), revision, trust_remote_code)
    elif own:
        if tokenizer is None:
            raise OptionError("a model in memory needs its tokenizer: load_model(model, tokenizer=tokenizer)")
        check_supported(source.config)
        model, own_tokenizer, spec = source, None, f"memory:{type(source).__name__}{adapted}"
    else:
        raise OptionError(
            f"no model can be loaded from a {type(source).__name__}; give a hub id, a folder or a transformers model"
        )
    if isinstance(tokenizer, str | Path):
        tokenizer = _tokenizer(str(tokenizer), _where(str(tokenizer), revision, trust_remote_code), str(tokenizer))
    found = own_tokenizer if tokenizer is None else tokenizer
    tokens, config = Tokens(found), text_config(model)
    return LoadedParts(
        network=model,
        own=own,
        spec=spec,
        config=model.config.to_dict() | {"adapters": active_adapters(model) or None},
        tokens=tokens,
        context=_context(config),
        anatomy=lambda network: find_layers(network) or infer(network),
        beginning=lambda rows: beginning_of(found, config, tokens, rows=rows),
        ends=lambda rows: ends_of(found, config, getattr(model, "generation_config", None), tokens, rows=rows),
    )


def _inside_adapters(source: Any) -> tuple[Any, str]:
    """The model inside a PEFT model, whose layers the adapters are in, and the names of those at work, for its spec.

    Raises ModelUnsupported for an adapter that is not in the layers, such as a learned prompt.
    """
    if not is_of_adapters(source):
        return source, ""
    if bool(getattr(source.active_peft_config, "is_prompt_learning", False)):
        raise ModelUnsupported("a learned prompt is no part of the layers, so it cannot be read; give the model alone")
    inside = source.get_base_model()
    if not isinstance(inside, PreTrainedModel):
        raise ModelUnsupported(f"the {type(inside).__name__} that is adapted is not a transformers model")
    return inside, "".join(f"+{name}" for name in source.active_adapters)


def _context(config: Any) -> int:
    stated = (getattr(config, name, None) for name in _CONTEXT_ENTRIES)
    return next((value for value in stated if isinstance(value, int) and value > 0), _UNSTATED_CONTEXT)


def _from_name(source: str, revision: str | None, trust: bool) -> tuple[Any, Any, str]:
    """Model, tokenizer and spec of a name."""
    scheme, separator, name = source.partition(":")
    if separator and scheme == "handmade":
        return (*handmade.build(name), source)
    if separator and scheme == "builtin":
        return (*_load_stored(str(builtin_folder(name)), source, None, False), source)
    if not source.strip():
        raise ModelNotFound("the model's name is empty; give a hub id or a folder")
    folder = Path(source).expanduser()
    if folder.is_dir():
        _check_folder(folder)
        return (*_load_stored(str(folder), source, None, trust), source)
    if folder.exists():
        raise ModelNotFound(f"{source!r} is a file; give the folder that holds config.json and the weights")
    if source.startswith((".", "/", "~")) or source.count("/") > 1 or separator:
        raise ModelNotFound(f"no folder {source!r}; give a folder with config.json and weights, or a hub id")
    return (*_load_stored(source, source, revision, trust), source)


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
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise ModelNotFound(
            f"folder {str(folder)!r} holds an adapter, not a model; in Python, load both with peft and give load_model"
            " the model and its tokenizer"
        )
    if not (folder / "config.json").is_file():
        raise ModelNotFound(f"folder {str(folder)!r} holds no config.json; give the folder of a saved model")
    if not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
        raise ModelNotFound(f"folder {str(folder)!r} holds no weights (*.safetensors); save the model there first")


def _load_stored(place: str, source: str, revision: str | None, trust: bool) -> tuple[Any, Any]:
    """Model and tokenizer as stored in a folder or on the hub, in the stored dtype."""
    where = _where(place, revision, trust)
    with _one_line_errors(source):
        config = AutoConfig.from_pretrained(place, **where)
    check_supported(config)
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not trust:
        raise ModelUnsupported(f"model type {config.model_type!r} is no causal language model that transformers knows")
    tokenizer = _tokenizer(place, where, source)
    load: Any = AutoModelForCausalLM.from_pretrained
    with _one_line_errors(source):
        model, notes = load(place, dtype="auto", output_loading_info=True, **where)
    missing = sorted(notes["missing_keys"])
    if missing:
        raise ModelDamaged(
            f"model {source!r} lacks {len(missing)} of its weights, the first is {missing[0]!r}; take a complete copy"
        )
    return model, tokenizer


def _tokenizer(place: str, where: dict[str, Any], source: str) -> Any:
    folder = Path(place).expanduser()
    if folder.is_dir() and not any(any(folder.glob(pattern)) for pattern in _TOKENIZERS):
        raise ModelNotFound(f"folder {place!r} holds no tokenizer (tokenizer.json); save the model's tokenizer there")
    with _one_line_errors(source):
        # Some model types make AutoTokenizer build that family's own splitting rules around the stored vocabulary,
        # even where the tokenizer says that its tokenizer.json is all there is to it.
        stated = get_tokenizer_config(place, **where).get("tokenizer_class")
        kind: Any = PreTrainedTokenizerFast if stated in _PLAIN_TOKENIZERS else AutoTokenizer
        return kind.from_pretrained(place, **where)


def _where(place: str, revision: str | None, trust: bool) -> dict[str, Any]:
    """The arguments that tell transformers where to look.

    Without a network, only the local cache: the hub's client would retry for half a minute before it says so.
    """
    cached = not Path(place).expanduser().is_dir() and not getproxies() and not _reachable()
    return {"revision": revision, "trust_remote_code": trust, "local_files_only": cached}


def _reachable() -> bool:
    """Whether the hub's host answers a connection."""
    address = urlsplit(hub.ENDPOINT)
    try:
        with socket.create_connection((address.hostname or "", address.port or 443), timeout=5):
            return True
    except OSError:
        return False


@contextmanager
def _one_line_errors(source: str) -> Iterator[None]:
    """Silences transformers, and turns its own failures into one line of the project's."""
    try:
        with suppress_output():
            yield
    except ModelError:
        raise
    except OSError as error:
        if Path(source).expanduser().is_dir():
            raise ModelDamaged(f"model {source!r} cannot be read: {first_line(error)}") from None
        raise ModelNotFound(
            f"no model {source!r} on this machine or the hub ({first_line(error)}); check the name and the network"
        ) from None
    except ImportError as error:
        raise ModelUnsupported(
            f"model {source!r} needs a library that is not installed ({first_line(error)});"
            " quantised models: pip install 'mnemoscope[quantized]'"
        ) from None
    except Exception as error:
        text = first_line(error)
        for sign, kind, rest in _FAILURES:
            if sign in str(error):
                raise kind(f"model {source!r}{rest}") from None
        if "does not recognize this architecture" in str(error) or "Unrecognized" in str(error):
            raise ModelUnsupported(f"model {source!r} is of a kind that transformers does not know ({text})") from None
        raise ModelDamaged(f"model {source!r} cannot be read: {type(error).__name__}: {text}") from None
