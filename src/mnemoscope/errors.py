"""Everything that can go wrong, as one tree; the text of an error is one plain line.

The line says what was wrong, the value seen, and what to do about it. The command line prints it last and
exits with 2; only `Interrupted` (work saved after Ctrl-C) exits with 130. Any other exception is a bug.

    MnemoscopeError
    |-- OptionError             an impossible option
    |-- MemoryIdError           not a memory's name, or a memory that the model or atlas does not have
    |-- PromptError             a prompt that is empty, too long, or holds what the model has no token for
    |-- InterventionError       a change to a memory that cannot be made
    |-- SearchError             a search that cannot be understood
    |-- AnnotationError         judgements that cannot be taken, or a database out of reach or of another version
    |-- ServeError              a port in use, or an address that needs an access token
    |-- ModelError
    |   |-- ModelNotFound       no such hub id, folder, checkpoint or built-in name, or no weights or dictionary there
    |   |-- ModelUnsupported    encoders, mixtures of experts, blocks that cannot be read, pickles that want to run code
    |   |-- ModelDamaged        NaN or infinite weights, missing weights, ids beyond the head's rows
    |   `-- ProofFailed         the load-time proof found a layer that does not add up
    |-- CorpusError
    |   |-- CorpusNotFound      no such file, glob or data set
    |   |-- CorpusUnreadable    binary, truncated, not UTF-8, or a line without the text field
    |   `-- CorpusEmpty         a text with no usable sentence
    |-- AtlasError
    |   |-- AtlasNotFound       no atlas in that folder
    |   |-- AtlasUnfinished     mining has not ended yet
    |   |-- AtlasDamaged        a hash, a schema or a file is not what the manifest says
    |   |-- AtlasTooNew         written by a newer schema than this package reads
    |   |-- AtlasExists         finished already, or a folder that is not an atlas
    |   |-- AtlasBusy           another process writes it
    |   |-- ModelDiffers        the model given is not the one that was mined
    |   |-- PlanDiffers         unfinished, with another plan
    |   |-- PartsDiffer         parts of different plans, a missing or a repeated part
    |   `-- StoreFailed         full disk, read-only folder, no permission
    |-- MiningError
    |   `-- NotFinite           a NaN or infinite coefficient
    |-- TrainingError           training cannot start or go on
    `-- Interrupted             stopped by Ctrl-C with the state saved
"""


class MnemoscopeError(Exception):
    """Whatever a user can mend; the message is one plain line."""

    exit_code: int = 2


class OptionError(MnemoscopeError):
    """An option that cannot be met."""


class MemoryIdError(MnemoscopeError):
    """Not the name of a memory, or of one that is not there."""


class PromptError(MnemoscopeError):
    """A prompt that cannot be traced."""


class InterventionError(MnemoscopeError):
    """A change to a memory that cannot be made."""


class SearchError(MnemoscopeError):
    """A search that cannot be understood."""


class AnnotationError(MnemoscopeError):
    """Judgements that cannot be stored or read."""


class ServeError(MnemoscopeError):
    """An address that cannot be served."""


class ModelError(MnemoscopeError):
    """A language model that cannot be read."""


class ModelNotFound(ModelError):
    """No model under that name or in that folder."""


class ModelUnsupported(ModelError):
    """A kind of model whose memories cannot be read (yet)."""


class ModelDamaged(ModelError):
    """Weights or vocabulary that cannot be right."""


class ProofFailed(ModelError):
    """The load-time proof of definitions.md section 1 does not hold in some layer."""


class CorpusError(MnemoscopeError):
    """A text that cannot be read."""


class CorpusNotFound(CorpusError):
    """No text under that name."""


class CorpusUnreadable(CorpusError):
    """A text that is damaged or not of the form its name promises."""


class CorpusEmpty(CorpusError):
    """A text without a usable sentence."""


class AtlasError(MnemoscopeError):
    """An atlas that cannot be read or written."""


class AtlasNotFound(AtlasError):
    """No atlas in that folder."""


class AtlasUnfinished(AtlasError):
    """The folder holds an atlas whose mining has not ended."""


class AtlasDamaged(AtlasError):
    """Some file is missing or is not what the manifest says."""


class AtlasTooNew(AtlasError):
    """Written with a schema newer than this package knows."""


class AtlasExists(AtlasError):
    """The output folder is finished already, or holds something else."""


class AtlasBusy(AtlasError):
    """Another process is writing the atlas."""


class ModelDiffers(AtlasError):
    """A model that is not the one that the atlas was mined from."""


class PlanDiffers(AtlasError):
    """The unfinished atlas was begun with another plan."""


class PartsDiffer(AtlasError):
    """Parts that do not make one whole."""


class StoreFailed(AtlasError):
    """The operating system refused to store a file."""


class MiningError(MnemoscopeError):
    """Mining cannot go on."""


class NotFinite(MiningError):
    """The model computed a NaN or infinite coefficient."""


class TrainingError(MnemoscopeError):
    """Training cannot start or go on."""


class Interrupted(MnemoscopeError):
    """Ctrl-C arrived and the state was saved."""

    exit_code = 130
