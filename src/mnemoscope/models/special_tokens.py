"""Special tokens: which they are."""

from mnemoscope.errors import OptionError
from mnemoscope.models.language_model import LanguageModel
from mnemoscope.models.tokens.model_tokens import Tokens
from mnemoscope.models.tokens.python_tokens import PythonTokens


def special_tokens(model: LanguageModel) -> frozenset[int]:
    """The tokens that are marked special, end a text or fill it up."""
    if not isinstance(model.reader, Tokens | PythonTokens):
        raise OptionError(f"skip_special: no tokenizer says which tokens of {model.spec!r} are special; leave it out")
    return frozenset(model.reader.special()) | model.ends | ({model.padding} - {None})  # type: ignore[operator]
