"""What the readers of all formats share: the parts that they hand over, quiet libraries, and errors of one line.

huggingface.py and fairseq/ hand a model as they found it to loading.py, which puts it in a number format on a device
and has it proved. Warnings, logging and progress bars of transformers and the hub are silenced for the time of a call.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mnemoscope.foundation.model_options import AS_USUAL, ModelOptions, display_name, full_name, is_path
from mnemoscope.models.anatomy.anatomy import Anatomy
from mnemoscope.models.tokens.id_tokens import IdTokens
from mnemoscope.models.tokens.model_tokens import Beginning, Reader, chosen_beginning


@dataclass(frozen=True)
class LoadedParts:
    """A network with what belongs to it.

    own        the network is a user's object: a change of dtype or device works on a copy
    spec       its name without what `opening` adds to it
    name       what it calls itself, where a file of it does; else it is called as `spec`
    config     what the fingerprint covers beside weights and tokens
    context    tokens of the longest input
    anatomy    finds the parts of the network once it is placed
    beginning  the token put before every sentence, for a head of so many rows
    unread     names of stored weights that the model did not take
    boundaries lengths of a row beyond which it is computed otherwise (company.py)
    ends       the end-of-text tokens, for a head of so many rows
    padding    the token that fills shorter rows up, where there is one
    """

    network: Any
    own: bool
    spec: str
    config: dict[str, Any]
    tokens: Reader
    context: int
    anatomy: Callable[[Any], Anatomy]
    beginning: Callable[[int], Beginning]
    ends: Callable[[int], frozenset[int]]
    padding: Callable[[int], int | None] = lambda rows: None
    opening: ModelOptions = AS_USUAL
    name: str | None = None
    boundaries: tuple[int, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def shown_name(self) -> str:
        """What it is called where it is shown, without its adapter."""
        return self.name or display_name(full_name(self.spec))

    @property
    def hub(self) -> str | None:
        """Its id on the hub, where it is from there."""
        return None if ":" in self.spec or is_path(full_name(self.spec)) else self.spec

    def begins(self, rows: int) -> Beginning:
        """What is put before every sentence: as `opening` says, else as usual. Raises OptionError."""
        usual, asked = self.beginning(rows), self.opening.beginning
        return usual if asked is None else chosen_beginning(asked, usual, self.tokens, rows=rows)

    def reader(self, beginning: Beginning) -> Reader:
        """What reads texts that follow this beginning: of texts that are token ids, it is left out."""
        return IdTokens(beginning=beginning.token) if isinstance(self.tokens, IdTokens) else self.tokens


def raised_by_package(error: BaseException) -> bool:
    """Whether it was this package's own code that raised it, not a library's or a model's."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    return name.partition(".")[0] == __name__.partition(".")[0]


def first_line(error: BaseException) -> str:
    """The first line of an error's text, shortened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    if text.endswith(":") and len(lines) > 1:
        text += f" {lines[1]}"
    return text if len(text) <= 200 else text[:197] + "..."
