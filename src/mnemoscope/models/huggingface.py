"""A model's name, folder or transformers object -> LanguageModel.

Finds configuration, weights and tokenizer through transformers, refuses what cannot be right (no weights, missing or
non-finite weights, encoders, pickles that run code), and silences the library. Weights are read with safetensors or
torch's `weights_only`; a repository's own code runs only where `trust_remote_code` was asked for.
"""

import copy
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from huggingface_hub import constants as hub
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.models.auto.tokenization_auto import get_tokenizer_config

from mnemoscope.errors import ModelDamaged, ModelError, ModelNotFound, ModelUnsupported, OptionError
from mnemoscope.models import builtin, handmade
from mnemoscope.models.anatomy import dissect, refuse
from mnemoscope.models.fingerprint import check_finite, fingerprint
from mnemoscope.models.language_model import LanguageModel
from mnemoscope.models.noise import silent
from mnemoscope.models.structure import infer
from mnemoscope.models.tokens import Tokens

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_PLAIN_TOKENIZERS = ("PreTrainedTokenizerFast", "TokenizersBackend")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "*.tiktoken",
    "tekken.json",
)


def load_model(
    source: Any,
    *,
    tokenizer: Any = None,
    revision: str | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "cpu",
    trust_remote_code: bool = False,
) -> LanguageModel:
    """The LanguageModel of a hub id, a local folder, `builtin:NAME`, `handmade:NAME` or a transformers model.

    `dtype` None means float32; a model already in memory keeps its own (and is put into evaluation mode, its weights
    untouched; another dtype or device works on a copy). Raises ModelNotFound, ModelUnsupported, ModelDamaged,
    ProofFailed, OptionError.
    """
    kind = None if dtype is None else dtype_of(dtype)
    place = device_of(device)
    if isinstance(source, str | Path):
        model, own_tokenizer, spec = _from_name(str(source), revision, trust_remote_code)
        kind = torch.float32 if kind is None else kind
    elif isinstance(source, PreTrainedModel):
        if tokenizer is None:
            raise OptionError("a model in memory needs its tokenizer: load_model(model, tokenizer=tokenizer)")
        refuse(source.config)
        model, own_tokenizer, spec = source, None, f"memory:{type(source).__name__}"
    else:
        raise OptionError(
            f"no model can be loaded from a {type(source).__name__}; give a hub id, a folder or a transformers model"
        )
    if isinstance(tokenizer, str | Path):
        tokenizer = _tokenizer(str(tokenizer), revision, trust_remote_code)
    tokenizer = own_tokenizer if tokenizer is None else tokenizer

    tokens = Tokens(tokenizer)
    check_finite(model)
    identity = fingerprint(model, model.config, tokens.description)
    model = _placed(model, kind, place, copied=model is source)
    try:
        anatomy = dissect(model) or infer(model)
        return LanguageModel(anatomy, tokenizer, spec=spec, revision=revision, tokens=tokens, fingerprint=identity)
    except RuntimeError as problem:
        raise ModelUnsupported(f"model {spec!r} cannot be run: {_line(problem)}") from problem


def dtype_of(dtype: str | torch.dtype) -> torch.dtype:
    """The torch dtype of a name; raises OptionError for one that models are not run in."""
    found = DTYPES.get(str(dtype).removeprefix("torch."))
    if found is None:
        raise OptionError(f"dtype {str(dtype)!r} is not supported; choose {', '.join(DTYPES)}")
    return found


def device_of(device: str | torch.device) -> torch.device:
    """The torch device of a name; raises OptionError for one that this machine does not have."""
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as problem:
        raise OptionError(f"device {str(device)!r} cannot be used here: {_line(problem)}") from None
    return found


def _placed(model: Any, dtype: torch.dtype | None, device: torch.device, *, copied: bool) -> Any:
    """The model in a dtype on a device, ready for reading; a user's own object is copied before it changes."""
    weight = next(model.parameters())
    if (dtype is not None and weight.dtype != dtype) or weight.device != device:
        model = copy.deepcopy(model) if copied else model
        model = model.to(device=device, dtype=dtype)
    return model.eval()


def _from_name(source: str, revision: str | None, trust: bool) -> tuple[Any, Any, str]:
    """Model, tokenizer and spec of a name."""
    scheme, separator, name = source.partition(":")
    if separator and scheme == "handmade":
        return (*handmade.build(name), source)
    if separator and scheme == "builtin":
        return (*_stored(str(builtin.folder(name)), source, None, False), source)
    if separator and scheme == "fairseq":
        raise ModelUnsupported(f"{source!r}: fairseq checkpoints cannot be read yet; give a transformers model")
    if not source.strip():
        raise ModelNotFound("the model's name is empty; give a hub id or a folder")
    folder = Path(source).expanduser()
    if folder.is_dir():
        _check_folder(folder)
        return (*_stored(str(folder), source, None, trust), source)
    if folder.exists():
        raise ModelNotFound(f"{source!r} is a file; give the folder that holds config.json and the weights")
    if source.startswith((".", "/", "~")) or source.count("/") > 1 or separator:
        raise ModelNotFound(f"no folder {source!r}; give a folder with config.json and weights, or a hub id")
    return (*_stored(source, source, revision, trust), source)


def _check_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise ModelNotFound(f"folder {str(folder)!r} holds no config.json; give the folder of a saved model")
    if not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
        raise ModelNotFound(f"folder {str(folder)!r} holds no weights (*.safetensors); save the model there first")


def _stored(place: str, source: str, revision: str | None, trust: bool) -> tuple[Any, Any]:
    """Model and tokenizer as stored in a folder or on the hub, in the stored dtype."""
    where = _where(place, revision, trust)
    config = _guarded(source, lambda: AutoConfig.from_pretrained(place, **where))
    refuse(config)
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not trust:
        raise ModelUnsupported(f"model type {config.model_type!r} is no causal language model that transformers knows")
    tokenizer = _tokenizer(place, revision, trust, source=source)
    load: Any = AutoModelForCausalLM.from_pretrained
    model, notes = _guarded(source, lambda: load(place, dtype="auto", output_loading_info=True, **where))
    missing = sorted(notes["missing_keys"])
    if missing:
        raise ModelDamaged(
            f"model {source!r} lacks {len(missing)} of its weights, the first is {missing[0]!r}; take a complete copy"
        )
    return model, tokenizer


def _tokenizer(place: str, revision: str | None, trust: bool, *, source: str | None = None) -> Any:
    folder = Path(place).expanduser()
    if folder.is_dir() and not any(any(folder.glob(pattern)) for pattern in _TOKENIZERS):
        raise ModelNotFound(f"folder {place!r} holds no tokenizer (tokenizer.json); save the model's tokenizer there")
    where = _where(place, revision, trust)

    def load() -> Any:
        # Some model types make AutoTokenizer build that family's own splitting rules around the stored vocabulary,
        # even where the tokenizer says that its tokenizer.json is all there is to it.
        stated = get_tokenizer_config(place, **where).get("tokenizer_class")
        kind: Any = PreTrainedTokenizerFast if stated in _PLAIN_TOKENIZERS else AutoTokenizer
        return kind.from_pretrained(place, **where)

    return _guarded(source or place, load)


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


def _guarded(source: str, load: Any) -> Any:
    """What `load` returns, with transformers' own failures turned into one line of the project's."""
    try:
        with silent():
            return load()
    except ModelError:
        raise
    except OSError as problem:
        if Path(source).expanduser().is_dir():
            raise ModelDamaged(f"model {source!r} cannot be read: {_line(problem)}") from None
        raise ModelNotFound(
            f"no model {source!r} on this machine or the hub ({_line(problem)}); check the name and the network"
        ) from None
    except Exception as problem:
        text = _line(problem)
        if "Weights only load failed" in str(problem):
            raise ModelUnsupported(
                f"model {source!r}: its weights are a pickle that wants to run code; save them as safetensors"
            ) from None
        if "ignore_mismatched_sizes" in str(problem):
            raise ModelDamaged(
                f"model {source!r}: its weights are not of the shapes that its config.json says"
            ) from None
        if "trust_remote_code" in str(problem):
            raise ModelUnsupported(
                f"model {source!r} brings its own code; pass trust_remote_code (--trust-remote-code) if you trust it"
            ) from None
        if "does not recognize this architecture" in str(problem) or "Unrecognized" in str(problem):
            raise ModelUnsupported(f"model {source!r} is of a kind that transformers does not know ({text})") from None
        raise ModelDamaged(f"model {source!r} cannot be read: {type(problem).__name__}: {text}") from None


def _line(problem: BaseException) -> str:
    """The first line of an error's text, shortened."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    text = lines[0] if lines else type(problem).__name__
    return text if len(text) <= 200 else text[:197] + "..."
