"""Every error of the package, as one tree (drawn in docs/errors.md). The text of an error is one plain line.

The line states what was wrong, the value seen, and what to do. The command line prints it last and exits with 2;
`Interrupted` (work saved after Ctrl-C) exits with 130, `Terminated` with 75. Any other exception is a bug. On the
command line a line names options as flags (`--top 0`), in Python as arguments (`top=0`); commands between backquotes
stay as they are.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

_OPTION = re.compile(
    r"`[^`]*`|(?<![\w-])--([a-z]+(?:-[a-z]+)*[0-9]?)"
    r"(?:[ =]((?:'[^']*'|-?[0-9][\w./]*|nan|all|none|cpu|cuda|float32|ids|[A-Z][A-Z/|]*|[/~.][^\s;,)]*)(?![\w'])))?"
)
_SWITCHES = {
    *("accept-versions", "allow-mixed-devices", "dequantize", "force", "force-model", "json", "keep-work", "prepare"),
    *("print", "skip-special", "trust-remote-code"),
}
_running: list[bool] = []


@contextmanager
def command_line() -> Iterator[None]:
    """Makes errors name options by their flags inside the block, in every thread."""
    _running.append(True)
    try:
        yield
    finally:
        _running.pop()


def _as_argument(match: re.Match[str]) -> str:
    if match[1] is None:
        return match[0]
    name, value = "target" if match[1] == "for" else match[1].replace("-", "_"), match[2]
    if value is None:
        return f"{name}=True" if match[1] in _SWITCHES else name
    plain = re.fullmatch(r"'.*'|-?[0-9][0-9.]*|nan", value) or (value.isupper() and "/" not in value)
    return f"{name}={value}" if plain else f"{name}='{value}'"


class MnemoscopeError(Exception):
    """An error that the user can fix; the message is one plain line."""

    exit_code: int = 2

    def __str__(self) -> str:
        line = super().__str__()
        return line if _running else _OPTION.sub(_as_argument, line)


class OptionError(MnemoscopeError):
    """An impossible option."""


class MemoryIdError(MnemoscopeError):
    """Not a memory's name, or a memory that the model or atlas does not have."""


class PromptError(MnemoscopeError):
    """A prompt that is empty, too long, or holds what the model has no token for."""


class InterventionError(MnemoscopeError):
    """A change to a memory that cannot be made."""


class SearchError(MnemoscopeError):
    """A search that cannot be understood."""


class AnnotationError(MnemoscopeError):
    """Judgements that cannot be taken, or a database that cannot be used or is of another version."""


class ServeError(MnemoscopeError):
    """A port in use, or an address that needs an access token."""


class Forked(MnemoscopeError):
    """A forked process that would wait for ever for threads of its parent."""


class ModelError(MnemoscopeError):
    """A language model that cannot be read."""


class ModelNotFound(ModelError):
    """No such hub id, folder, checkpoint or built-in name, or no weights or dictionary there."""


class TokenizerNotFound(ModelError):
    """A model without a tokenizer, where none was named."""


class ModelUnsupported(ModelError):
    """Blocks, heads or experts that cannot be read, pickles that would run code."""


class ModelDamaged(ModelError):
    """NaN or infinite weights, missing weights, ids beyond the head's rows."""


class ProofFailed(ModelError):
    """The load-time proof found a layer that does not add up."""


class ModelChanged(ModelError):
    """A model that was changed after it was loaded."""


class CorpusError(MnemoscopeError):
    """A text that cannot be read."""


class CorpusNotFound(CorpusError):
    """No such file, glob or data set."""


class CorpusUnreadable(CorpusError):
    """Binary, truncated, not UTF-8, or a line without the text field."""


class CorpusEmpty(CorpusError):
    """A text with no usable sentence."""


class AtlasError(MnemoscopeError):
    """An atlas that cannot be read or written."""


class AtlasNotFound(AtlasError):
    """No atlas in that folder."""


class AtlasUnfinished(AtlasError):
    """Mining has not ended yet."""


class AtlasDamaged(AtlasError):
    """A hash, a schema or a file is not what the manifest says."""


class AtlasTooNew(AtlasError):
    """Of another schema, or mined by other rules, than this package's."""


class AtlasExists(AtlasError):
    """Finished already, or a folder that is not an atlas."""


class AtlasBusy(AtlasError):
    """Another process writes it."""


class ModelDiffers(AtlasError):
    """The model given is not the one that was mined."""


class PlanDiffers(AtlasError):
    """Unfinished, with another plan."""


class PartsDiffer(AtlasError):
    """Parts of different plans, a missing or a repeated part."""


class AtlasesDiffer(AtlasError):
    """Atlases of different texts, or mined differently, which cannot be compared."""


class StoreFailed(AtlasError):
    """Full disk, read-only folder, no permission."""


class MiningError(MnemoscopeError):
    """Mining cannot go on."""


class NotFinite(MiningError):
    """A NaN or infinite coefficient."""


class TrainingError(MnemoscopeError):
    """Training cannot start or go on."""


class Interrupted(MnemoscopeError):
    """Stopped by Ctrl-C with the state saved."""

    exit_code = 130


class Terminated(Interrupted):
    """Stopped by SIGTERM or SIGUSR1 with the state saved."""

    exit_code = 75
