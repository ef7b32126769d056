"""The options of the verbs that run a model on prompts: trace, attribute, diff, audit. Needs no torch."""

import re
from pathlib import Path
from typing import Any

from mnemoscope.errors import OptionError
from mnemoscope.foundation.options.chat_prompt import Prompt, check_messages
from mnemoscope.foundation.options.declared import DeclaredOptions, flag_of, like, option
from mnemoscope.foundation.options.mining_options import LoadOptions
from mnemoscope.foundation.options.model_options import ModelArgument
from mnemoscope.foundation.options.prompt_file import check_restored, read_messages

ORDERS = ("ablation", "attribution", "direct")
PATCHES = ("contribution", "coefficient")
EACH = "each"
VARIED = ("all", "digits")
"""Which characters vary: digits and letters, or digits only."""

# The numbers and texts of an answer that `--fail-if` compares; each may have no value.
_LISTED = ("memories", "k")
_CURVE = (*_LISTED, "without", "control")
_PROVED = ("residual_error", "limit")
ATTRIBUTE = ("target", "against", "position", "difference", "difference_after_cap", *_CURVE, *_PROVED)
ATTRIBUTE_PROMPTS = ("prompts", "refused", *_CURVE)
_RECOVERED = ("recovered", "control_recovered", "recovered_all", "recovered_everywhere")
_CHANGE = ("first", "second", "difference_first", "difference_second", "change", "turns_at")
DIFF = (*_CHANGE, *_LISTED, *_RECOVERED, *_PROVED)
DIFF_PROMPTS = ("prompts", "refused", "never_parted", "turned", *_LISTED, *_RECOVERED)
TEXTS = {"target", "against", "first", "second"}
"""Those that are texts."""


def _fail_if(*names: str) -> Any:
    return option(None, f"Exit with 3 where it holds; compares {', '.join(dict.fromkeys(names))}.", metavar="EXPR")


class ChatOptions(DeclaredOptions):
    """Whether a prompt is a chat."""

    chat: bool = option(False, "PROMPT is what a user says, in the model's chat template.")
    messages: Path | None = option(None, "A chat: a JSON list of {role, content}, or JSONL.", metavar="FILE")

    def read(self, prompt: str | None, *, whole: bool = False) -> Prompt | None:
        """PROMPT, or the messages of a chat; `whole`: positions count all of its tokens."""
        if self.messages is not None:
            if self.chat or prompt is not None:
                raise OptionError(
                    "--messages FILE is the whole chat; leave out " + ("--chat" if self.chat else "PROMPT")
                )
            return read_messages(self.messages)
        if whole and not self.chat:
            raise OptionError("--whole is for a chat; give --chat or --messages FILE, too")
        return check_messages([{"role": "user", "content": prompt}]) if self.chat and prompt is not None else prompt


def _check_mask(mask: str | int) -> None:
    if mask != EACH and re.fullmatch("-?[0-9]{1,9}", str(mask)) is None:
        raise OptionError(f"--mask {mask!r} is impossible; it must be the number of a position, or {EACH}")


class TraceOptions(ModelArgument):
    prompt: str | None = option(None, "Plain text; after -- if it begins with a dash.", argument=True)
    mask: str | None = option(
        None,
        "The own token that a masked model does not see (without it PROMPT holds the mask token, once).",
        metavar="POSITION|each",
        check=_check_mask,
    )
    changes: list[str] | None = option(
        None,
        "L10.M222=0 sets an activation (coefficient), L10.M222*2 scales it; at the last position: L10.M222=0@last;"
        " from position 5 on: L10.M222=0@5; of many: L3=0, L5.M0-19=0, @FILE=0 (a saved list). May be given several"
        " times; shows before and after.",
        flag="--set",
        metavar="CHANGE",
    )
    generate: int = option(0, "Go on for N tokens, or to the end of the text.", least=0)
    temperature: float = option(0.0, "Of that continuation; 0 always takes the best token.", metavar="T", least=0)
    seed: int = option(0, "Of a continuation with a temperature above 0.", least=0)
    position: int | None = option(None, "The position whose layers are shown.", instead="the last")
    source: str | None = option(None, "What an encoder-decoder reads (PROMPT is its text so far).", metavar="TEXT")
    asked: ChatOptions
    whole: bool = option(False, "Positions count the whole chat, not only its last message.")
    top: int = option(10, "Predictions of each stream (--json gives all).", metavar="K", least=1)
    memories: int = option(10, "Dominant memories of each layer in --json.", metavar="K", least=0)
    figure1: int | None = option(None, "Draw the paper's Figure 1 for this layer, into --out.", metavar="LAYER")
    out: Path | None = option(None, "Of --figure1: a file in .svg, .png or .pdf.", metavar="FILE")
    loading: LoadOptions

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.figure1 is None) != (self.out is None):
            raise OptionError("--figure1 LAYER and --out FILE go together: give both")
        if self.mask == EACH and (
            self.changes or self.generate or self.position is not None or self.figure1 is not None
        ):
            raise OptionError("--mask each shows every token; leave out changes, --generate, --position and --figure1")


def _check_prompts(options: Any, *alone: str) -> None:
    """Raises OptionError unless there is one prompt or a file of them, and for what goes with one prompt only."""
    given = options.prompt is not None or options.asked.messages is not None
    if given == (options.prompts is not None):
        raise OptionError("give one prompt, or --prompts FILE")
    for one, value in options.values() if not given else ():
        if one.name in alone and value != one.default:
            raise OptionError(f"{flag_of(one)} is for one prompt; leave it out beside --prompts FILE")


class AttributeOptions(ModelArgument):
    prompt: str | None = like(TraceOptions, "prompt")
    target: str | None = option(
        None, "The next word asked about, with its space.", flag="--for", metavar="TEXT", instead="the model's"
    )
    against: str | None = option(None, "The word it is compared with.", metavar="TEXT|mean", instead="the next best")
    prompts: Path | None = option(
        None, "JSONL: prompt or messages, source, for, against; what they share.", metavar="FILE"
    )
    position: int | None = option(None, "The position whose next token is asked about.", instead="the last")
    source: str | None = like(TraceOptions, "source")
    mask: int | None = like(TraceOptions, "mask", metavar="POSITION", check=None)
    asked: ChatOptions
    whole: bool = like(TraceOptions, "whole")
    by: str = option("ablation", "The order of the list.", choices=ORDERS)
    singles: int = option(128, "Memories switched off one by one.", least=0)
    top: int = option(128, "Memories listed (20 of them without --json).", least=0)
    edges: int = option(
        1_000, "Pairs of ablated memories listed, of which one feeds the other (10 of them without --json).", least=0
    )
    graph: Path | None = option(None, "Write them as a graph for circuit-tracer's pages.", metavar="FOLDER")
    atlas: Path | None = option(None, "An atlas of this model: labels, promoted tokens, triggers.")
    save_list: Path | None = option(
        None, "Save the memories as a list, for @FILE wherever memories are named.", metavar="FILE"
    )
    seed: int = option(0, "Of the controls.", least=0)
    loading: LoadOptions
    fail_if: str | None = _fail_if(*ATTRIBUTE, *ATTRIBUTE_PROMPTS)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_prompts(self, "source", "target", "against", "position", "mask", "chat", "edges", "graph")


class DiffOptions(ModelArgument):
    prompt: str | None = like(TraceOptions, "prompt")
    other: str | None = option(None, "The second model.", metavar="MODEL")
    other_adapter: str | None = option(None, "The second is MODEL with this PEFT adapter.", metavar="ID|FOLDER")
    other_prompt: str | None = option(None, "The second is MODEL on this prompt (or last message).", metavar="PROMPT")
    target: str | None = option(None, "The second's answer.", flag="--for", metavar="TEXT", instead="its prediction")
    against: str | None = option(None, "The first's answer.", metavar="TEXT", instead="its prediction")
    prompts: Path | None = option(
        None, "JSONL: prompt or messages, source, for, against, other_prompt.", metavar="FILE"
    )
    source: str | None = like(TraceOptions, "source")
    mask: int | None = like(AttributeOptions, "mask")
    asked: ChatOptions
    both: bool = option(False, "List those that pushed the other way, too.")
    patch: str = option("contribution", "What is set back of a memory.", choices=PATCHES)
    top: int = like(AttributeOptions, "top")
    generate: int = option(0, "Two models write N tokens each from where they part.", least=0)
    restored: int | None = option(
        None, "The second writes, or is saved, with the K first memories as in the first.", metavar="K", least=1
    )
    save: Path | None = option(
        None, "Save the second model, or its LoRA, with the weights of these restored.", metavar="FOLDER"
    )
    save_list: Path | None = like(AttributeOptions, "save_list")
    atlas: Path | None = option(None, "An atlas of one of the models: labels, tokens, triggers.")
    seed: int = like(AttributeOptions, "seed")
    loading: LoadOptions
    fail_if: str | None = _fail_if(*DIFF, *DIFF_PROMPTS)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_prompts(self, "source", "other_prompt", "target", "against", "mask", "chat", "generate")
        if self.prompts is None and [self.other, self.other_adapter, self.other_prompt].count(None) != 2:
            raise OptionError("give one of --other, --other-adapter and --other-prompt")
        two_prompts = self.other is None and self.other_adapter is None
        check_restored(self.restored or 0, self.top, two_prompts=two_prompts, generate=self.generate)
        if self.save is not None and self.restored is None:
            raise OptionError("--save needs --restored K: how many of the first memories are put back")
        if self.restored is not None and self.save is None and not self.generate and self.fail_if is None:
            raise OptionError("--restored needs --generate N, --save FOLDER or --fail-if EXPR: what is done with these")


class AuditOptions(DeclaredOptions):
    """What is drawn beside each string, and what is measured of its memories."""

    # With fewer than 19 others a string cannot be among the highest 5 %.
    alternatives: int = option(999, "Random strings of the same form beside each.", least=19)
    vary: str = option("all", "What is random in them: digits and letters, or only digits.", choices=VARIED)
    candidates: int = option(16, "Memories switched off one by one.")
    top: int = option(4, "Memories switched off together.", metavar="K")
    neighbours: int = option(200, "Texts, at most, on which side effects are measured.", least=1)
    seed: int = option(0, "Of the alternatives and the control memories.", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.top <= self.candidates:
            raise OptionError(
                f"the top {self.top} of {self.candidates} candidates is impossible; choose top from 1 to candidates"
            )
