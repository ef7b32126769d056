"""A tokenizer, by name or object: found, opened by transformers, and made a reader of plain text.

Of a folder without any file of a tokenizer, and of one that transformers would make an empty tokenizer of, one line
says what to do. Where texts are token ids (`ids`) nothing is opened.
"""

from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizer, PreTrainedTokenizerFast
from transformers.models.auto.tokenization_auto import get_tokenizer_config
from transformers.utils.hub import cached_file

from mnemoscope.errors import ModelDamaged, ModelError, ModelNotFound, ModelUnsupported, PromptError, TokenizerNotFound
from mnemoscope.models.opening.gguf_file import has_tokenizer
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
"""How often a text is tokenised again to see whether its tokens stay the same."""
_WHAT_TO_DO = "name a folder or hub id that does as --tokenizer, or mine token ids (--ids-field, or --tokenizer ids)"


def open_tokenizer(place: str, arguments: dict[str, Any], *, source: str | None = None) -> Any:
    """The tokenizer of a folder, of a file there, or of a hub id: that of a model (`source`), or one alone.

    Raises TokenizerNotFound, ModelNotFound, ModelUnsupported, ModelDamaged.
    """
    folder, file = Path(place).expanduser(), arguments.get("gguf_file")
    has_one = has_tokenizer(folder / file) if file else any(any(folder.glob(pattern)) for pattern in _FILES)
    name = f"folder {place!r}" if file is None and folder.is_dir() else repr(source or place)
    if folder.is_dir() and not has_one:
        raise TokenizerNotFound(f"{name} holds no tokenizer; {_WHAT_TO_DO}")
    if folder.is_file():
        raise ModelNotFound(f"tokenizer {place!r} is a file; give the folder that holds it")
    try:
        with one_line_errors(source or place, what="tokenizer" if source is None else "model"):
            # Some model types make AutoTokenizer build that family's own splitting rules around the stored vocabulary,
            # even where the tokenizer says that its tokenizer.json is all there is to it.
            stated = get_tokenizer_config(place, **arguments).get("tokenizer_class")
            kind: Any = PreTrainedTokenizerFast if stated in _PLAIN else AutoTokenizer
            found = kind.from_pretrained(place, **arguments)
    except ModelError:
        if source is None or folder.is_dir() or _has_files(place, arguments):
            raise
        raise TokenizerNotFound(f"{name} holds no tokenizer; {_WHAT_TO_DO}") from None
    if not _words(found):
        raise TokenizerNotFound(f"{name} holds no tokenizer that transformers reads words from; {_WHAT_TO_DO}")
    if file is None and (folder / "tokenizer.model").is_file() and not (folder / "tokenizer.json").is_file():
        _check_pieces(found, folder / "tokenizer.model", name)
    return found


def _has_files(place: str, arguments: dict[str, Any]) -> bool:
    """Whether a repository of the hub has a file of a tokenizer."""
    quiet = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    asked = {name: arguments.get(name) for name in ("revision", "local_files_only")}
    find: Any = cached_file
    return any(find(place, name, **asked, **quiet) is not None for name in _FILES if "*" not in name)


def _check_pieces(tokenizer: Any, path: Path, name: str) -> None:
    """Raises ModelUnsupported where transformers makes other pieces of a text than SentencePiece, whose file this is.

    Where nothing states the tokenizer's class, transformers takes the model's family's, which may be of another kind.
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
        own = [None if token == tokenizer.unk_token_id else tokenizer.convert_ids_to_tokens(token) for token in ids]
        its = processor.encode_as_ids(text)
        if own != [None if processor.is_unknown(token) else processor.id_to_piece(token) for token in its]:
            raise ModelUnsupported(
                f"transformers reads the tokenizer.model of {name} otherwise than SentencePiece; state its class in"
                ' tokenizer_config.json, such as "tokenizer_class": "LlamaTokenizer", or name another as --tokenizer'
            )


def _steady(reader: Tokens | PythonTokens) -> SpecialReader:
    """The reader, if it makes the same tokens of a text each time; raises ModelUnsupported."""
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


def _words(tokenizer: Any) -> int:
    """How many tokens there are beside those that were added: transformers makes an empty one of files it misses."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return int(tokenizer.vocab_size if backend is None else backend.get_vocab_size(with_added_tokens=False))


def reader_of(tokenizer: Any) -> SpecialReader:
    """The reader of plain text of a tokenizer: its Rust half or, where it has none, the Python class itself.

    Raises ModelUnsupported for what is no tokenizer, and for one that splits words at random.
    """
    if isinstance(tokenizer, Tokenizer) or isinstance(getattr(tokenizer, "backend_tokenizer", None), Tokenizer):
        return _steady(Tokens(tokenizer))
    if isinstance(tokenizer, PreTrainedTokenizer):
        return _steady(PythonTokens(tokenizer))
    raise ModelUnsupported(
        f"a {type(tokenizer).__name__} is no tokenizer of transformers or tokenizers; save it as a"
        " PreTrainedTokenizerFast, or mine token ids (--ids-field)"
    )
