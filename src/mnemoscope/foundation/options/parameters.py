"""What the parameters of the public functions mean: a name means the same everywhere. `help` shows them as `Args:`."""

import inspect
import re
from functools import cache
from typing import Any, TypeVar

from mnemoscope.foundation.options.mining_options import MiningOptions
from mnemoscope.foundation.options.model_options import KEYWORDS, ModelOptions

Kind = TypeVar("Kind")

MEANINGS = {
    "against": 'What `target` is compared with, likewise; "mean": the mean of all tokens; None: the best other token.',
    "allow_mixed_devices": "Whether parts may come from devices of different names: equal to tolerance.",
    "alternatives": "How many random strings of the same form stand beside each.",
    "as_arrays": "Whether arrays are returned in place of a frame.",
    "at": "The positions: all, last, or from a number on.",
    "capture.at": "The positions: all, the last, or one by its number (below 0 from the end).",
    "coefficients.at": "The positions: all, the last, or one by its number (below 0 from the end).",
    "atlas": "An atlas, or its folder.",
    "both": "Whether memories that pushed away from the second's answer are listed, too.",
    "branch": "The number of a layer's branch: 0 are the routed experts.",
    "by": "The order of the list: ablation, attribution or direct.",
    "search.by": "text, or of a token: promotes, demotes or fires.",
    "callback": "Called in every forward.",
    "candidates": "How many memories are switched off one by one.",
    "column": "The column by which the table is sorted.",
    "columns": "Their names; None: all.",
    "corpus": "builtin:pydocs, a .txt, .jsonl or .parquet file, a glob of them, or hub:DATASET.",
    "count": "How many; None: all.",
    "evaluate_every": "Steps between two lines of the log.",
    "fields": "Of patterns, annotations, words, triggers, values, bottom; None: all but bottom.",
    "first": "The model whose keys and values are put back, or its name.",
    "generate": "How many tokens two models write from where they part.",
    "gradients": "Whether what hooks put in may require its gradient.",
    "past": "The library's cache of what was read before.",
    "how": "How numbers without a sign are meant: set or scale.",
    "ids": "Numbers of tokens, or of rows in a column.",
    "interventions": 'Changes of memories: {"L10.M222": 0.0} or ["L10.M222=0@last"].',
    "k": "How many triggers of each memory and sign; None: all.",
    "keep_checkpoints": "Steps between two checkpoints that are kept as models; None: none is.",
    "kinds": "Of ridge and tuned.",
    "layer": "The layer, counted from 0.",
    "layers": "The layers, as numbers (of an option also as `0-3,7`); None: all.",
    "limit": "How many are listed.",
    "fit_lenses.max_tokens": "The most tokens that are read.",
    "memories": "Memories, by name or number; None: all.",
    "coefficients.memories": '"L3.M17", "L5.M0-19,L6" or "@FILE"; or their numbers in each of the layers; None: all.',
    "trace.memories": "At most how many memories of each layer and position.",
    "figure1.memories": "At most how many memories have a row of their own.",
    "memory": "The name of a memory, such as L10.M222.",
    "mined": "The entry `model` of a manifest.",
    "model": "A LanguageModel, or a name that `load_model` takes.",
    "intervene.model": "A LanguageModel.",
    "models": "The models of the atlases, which add cosines of keys and values.",
    "more": "Further atlases, each compared with the one before.",
    "name": "The name of a table.",
    "mine.name": "The model's display name; None: its folder, file or id on the hub. Changes no byte.",
    "audit.neighbours": "Texts, at most, on which side effects are measured.",
    "norm": "A norm of the model.",
    "number": "A memory's number in its layer, experts' memories counted through.",
    "options": "Names and values.",
    "other": "The second model or atlas, opened or by name.",
    "other_adapter": "The adapter that makes the model the second one.",
    "other_prompt": "The prompt of the second run.",
    "out": "The folder of the new atlas.",
    "train.out": "The folder of the model; training goes on where it stopped.",
    "write_report.out": "The folder of the report; None: `report` in the atlas.",
    "parts": "The folders of all parts of one plan.",
    "patch": "What is set back: contribution or coefficient.",
    "path": "A folder or file.",
    "places": "Pairs of sentence and position.",
    "position": "A position of the prompt's own tokens, from 0, or below 0 from the end; None: the last.",
    "progress": "True: a bar in a terminal or notebook; or a function of stage, done, total (or None) and note.",
    "projection": "raw, gain or lens (definitions.md section 2).",
    "prompt": "Plain text, read as mining reads a sentence, or the messages of a chat.",
    "question": "The name of a question, such as value_agreement.",
    "read": "A function of a layer.",
    "recipe": "A `mnemoscope.training.Recipe`; None: that of the built-in model.",
    "reduce": "What is taken of each text's positions: mean, max or last; None: each by itself.",
    "say": "Gets each line of the log.",
    "secrets": "The strings, one of them, or as a Path a file of them, one a line.",
    "restore.memories": 'By name: ["L3.M17"], "L5.M0-19,L6", or "@FILE", a saved list.',
    "restored": "How many of the first memories are set back while the second model writes.",
    "save": "A new folder for the model, or for its LoRA alone; None: it is not saved.",
    "second": "The model that is copied, or its name.",
    "seed": "Of random draws.",
    "shown": "How many probabilities are shown.",
    "sign": "1 or -1; None: both.",
    "singles": "How many memories are ablated one by one.",
    "source": "A hub id, a folder, builtin:NAME, handmade:NAME, fairseq:PATH.pt, or a model in memory.",
    "stop_after": "The layer whose coefficients end the run.",
    "stored": "The sentences, if they were read before.",
    "streams": "The name of a stream, or several.",
    "table": "The name of a table.",
    "tables": "The names of tables; none: all that can be made.",
    "taps": "What holds the hooks.",
    "target": "The next word as text, with its space; None: the model's own prediction.",
    "tensor": "A tensor of this thread's running forward.",
    "text": "A text.",
    "texts": "Texts.",
    "capture.texts": "A text or the messages of a chat, or a list of them.",
    "coefficients.texts": "A text or the messages of a chat, or a list of them.",
    "extend.text": "Where the text that was mined lies now; None: where it was.",
    "extend.validation": "Where the validation text lies now; None: where it was.",
    "top": "How many are listed.",
    "audit.top": "How many memories are switched off together.",
    "vary": "What is random in the alternatives: all (digits and letters) or digits.",
    "wanted": "The text; None: the documentation on this machine.",
    "whole": "Whether positions of a chat count all its tokens, the template's too.",
    "vectors": "Vectors `[n, hidden]`.",
}


def explain(kind: type[Kind]) -> type[Kind]:
    """Decorates a public class: adds `Args:` to its public methods."""
    for name, method in vars(kind).items():
        if not name.startswith("_"):
            add_args(getattr(method, "__func__", method))
    return kind


def add_args(function: Any) -> None:
    """Adds `Args:` to a function's docstring, unless it has them: a line for each parameter of a known meaning."""
    text = inspect.cleandoc(getattr(function, "__doc__", None) or "")
    if inspect.isfunction(function) and text and "Args:" not in text:
        meanings = {**_fields_of(ModelOptions), **_fields_of(MiningOptions), **MEANINGS}
        found = {
            name: meanings.get(f"{function.__name__}.{name}", meanings.get(name))
            for name in inspect.signature(function).parameters
        }
        lines = [f"    {name}: {said}" for name, said in found.items() if said is not None]
        function.__doc__ = "\n".join([text, "", "Args:", *lines]) if lines else text


@cache
def _fields_of(kind: type) -> dict[str, str]:
    """What the docstrings below the fields of a dataclass say, by keyword."""
    try:
        source = inspect.getsource(kind)
    except OSError:  # installed without its source
        return {}
    found = re.findall(r'^    (\w+): [^\n]*\n    """(.*?)"""', source, re.M | re.S)
    return {KEYWORDS.get(name, name): " ".join(said.split()) for name, said in found}
