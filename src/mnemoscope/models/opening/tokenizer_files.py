"""Opens a tokenizer, by name or object, through transformers, as a reader of plain text.

For a folder without any file of a tokenizer, and for one of which transformers would make an empty tokenizer, raises
one line that says what to do. Where texts are token ids (`ids`), opens nothing.
"""

from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizer, PreTrainedTokenizerFast
from transformers.models.auto.tokenization_auto import get_tokenizer_config

from mnemoscope.errors import ModelDamaged, ModelError, ModelNotFound, ModelUnsupported, PromptError, TokenizerNotFound
from mnemoscope.models.modules.weight_layouts import find_file
from mnemoscope.models.opening.hub import one_line_errors
from mnemoscope.models.tokens.model_tokens import SpecialReader, Tokens
from mnemoscope.models.tokens.python_tokens import PythonTokens

_PLAIN = ("PreTrainedTokenizerFast", "TokenizersBackend")
_FILES = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "*.tiktoken", "tekken.json"),
    "tokenizer_config.json",
)
_PROBE = ("the cat sat on the mat", "A 12-line text, (one) of two.", "caf\u00e9 \u65e5\u672c")
_TIMES = 8
_WHAT_TO_DO = "name a folder or hub id with one as --tokenizer, or mine token ids (--ids-field, or --tokenizer ids)"


def open_tokenizer(
    place: str, arguments: dict[str, Any], *, source: str | None = None, stated: Mapping[str, Any] | None = None
) -> Any:
    """The tokenizer of a folder, a `.gguf` file there (`stated`: its metadata), or a hub id; `source` is the model's
    name.
    """
    folder, file = Path(place).expanduser(), arguments.get("gguf_file")
    has_file = any(any(folder.glob(pattern)) for pattern in _FILES)
    has_one = has_file if stated is None else "tokenizer.ggml.model" in stated
    name = f"folder {place!r}" if file is None and folder.is_dir() else repr(source or place)
    if folder.is_dir() and not has_one:
        raise TokenizerNotFound(f"{name} holds no tokenizer; {_WHAT_TO_DO}")
    if folder.is_file():
        raise ModelNotFound(f"tokenizer {place!r} is a file; give the folder that holds it")
    try:
        with one_line_errors(source or place, what="tokenizer" if source is None else "model"):
            # Some model types make AutoTokenizer build that family's own splitting rules around the stored vocabulary,
            # even where the tokenizer states that its tokenizer.json is complete.
            stated = get_tokenizer_config(place, **arguments).get("tokenizer_class")
            kind: Any = PreTrainedTokenizerFast if stated in _PLAIN else AutoTokenizer
            tokenizer = kind.from_pretrained(place, **arguments)
    except ModelError:
        names = [] if source is None or folder.is_dir() else [name for name in _FILES if "*" not in name]
        if not names or any(find_file(place, name, arguments) is not None for name in names):
            raise
        raise TokenizerNotFound(f"{name} holds no tokenizer; {_WHAT_TO_DO}") from None
    # transformers makes an empty tokenizer of missing files, or one of special tokens alone.
    backend = getattr(tokenizer, "backend_tokenizer", None)
    words = range(tokenizer.vocab_size) if backend is None else backend.get_vocab(with_added_tokens=False).keys()
    if not {*words} - {*tokenizer.all_special_tokens}:
        raise TokenizerNotFound(f"{name} holds no tokenizer that transformers reads words from; {_WHAT_TO_DO}")
    if file is None and (folder / "tokenizer.model").is_file() and not (folder / "tokenizer.json").is_file():
        _check_pieces(tokenizer, folder / "tokenizer.model", name)
    return tokenizer


def _check_pieces(tokenizer: Any, path: Path, name: str) -> None:
    """Raises ModelUnsupported if transformers splits a text differently from SentencePiece, whose file this is: it may
    guess the class by the model's family.
    """
    if find_spec("sentencepiece") is None:
        return
    sentencepiece: Any = import_module("sentencepiece")
    try:
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError):  # a file of that name in another format
        return
    for text in _PROBE:
        [ids] = reader_of(tokenizer).encode([text])
        pieces = [None if token == tokenizer.unk_token_id else tokenizer.convert_ids_to_tokens(token) for token in ids]
        its = processor.encode_as_ids(text)
        if pieces != [None if processor.is_unknown(token) else processor.id_to_piece(token) for token in its]:
            raise ModelUnsupported(
                f"transformers reads the tokenizer.model of {name} differently from SentencePiece; state its class in"
                ' tokenizer_config.json, such as "tokenizer_class": "LlamaTokenizer", or name another as --tokenizer'
            )


def _steady(reader: Tokens | PythonTokens) -> SpecialReader:
    """Returns the reader."""
    for text in _PROBE:
        with suppress(PromptError, ModelDamaged):  # of a small vocabulary
            first, *again = (reader.encode([text])[0] for _ in range(_TIMES))
            if any(ids != first for ids in again):
                raise ModelUnsupported(
                    f"a {type(reader.tokenizer).__name__} splits words at random: {text!r} is {len(first)} tokens, then"
                    " others; open it without sampling (such as enable_sampling in sp_model_kwargs), and give that as"
                    " tokenizer"
                )
    return reader


def reader_of(tokenizer: Any) -> SpecialReader:
    if isinstance(tokenizer, Tokenizer) or isinstance(getattr(tokenizer, "backend_tokenizer", None), Tokenizer):
        return _steady(Tokens(tokenizer))
    if isinstance(tokenizer, PreTrainedTokenizer):
        return _steady(PythonTokens(tokenizer))
    raise ModelUnsupported(
        f"a {type(tokenizer).__name__} is not a tokenizer of transformers or tokenizers; save it as a"
        " PreTrainedTokenizerFast, or mine token ids (--ids-field)"
    )
