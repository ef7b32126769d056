"""The seven tools. None takes a path or writes: atlases have the names of the start, and lists in files are refused.

A call of the model ends when its time is over or its client has cancelled it, as the next module of the network begins
its forward: a hook on every module looks at the clock, and raises. A backward pass, and what is computed of a forward's
result, are finished first (docs/agents.md says how late that is).
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from mnemoscope.agents.answers import LEAST, MOST, USUAL, encode
from mnemoscope.atlas import Atlas
from mnemoscope.atlas.memory_document import MemoryDocument
from mnemoscope.comparison import compare
from mnemoscope.errors import AtlasNotFound, MemoryIdError, OptionError, PromptError
from mnemoscope.foundation.cache import Cache
from mnemoscope.foundation.memory_names import HasMemories, MemoryId, NamedMemories
from mnemoscope.patterns.labels import listed_labels
from mnemoscope.search import Index, open_index
from mnemoscope.search.found import search

if TYPE_CHECKING:
    from mnemoscope.models import LanguageModel

SECONDS, TOKENS = 60.0, 4_096
"""The most that a call takes, and reads."""
Text = Annotated[str, Field(min_length=1, max_length=65_536)]
Count = Annotated[int, Field(ge=0, le=200)]
Size = Annotated[int, Field(ge=LEAST, le=MOST)]
Examples = Annotated[list[Text], Field(min_length=3, max_length=50)]
By = Literal["text", "promotes", "demotes", "fires"]
Sign = Literal[1, -1]
Source = Annotated[
    Text | None, Field(description="What an encoder-decoder reads before it writes what the prompt begins")
]
Named = str | int | None


@dataclass(frozen=True)
class Tools:
    """Over atlases by their names, and the model of the first, which may still be loading."""

    atlases: Mapping[str, Atlas]
    model: "Future[LanguageModel] | None" = None
    seconds: float = SECONDS
    lock: Lock = field(default_factory=Lock)
    indexes: Cache = field(default_factory=Cache)

    def index(self, name: str) -> Index:
        """The search index of an atlas, which is made first where it is missing."""
        return self.indexes.get(name, lambda: open_index(self.atlases[name], progress=False))

    def search(
        self, text: Text, by: By = "text", limit: Count = 10, atlas: Named = None, most_bytes: Size = USUAL
    ) -> str:
        """Find memories by text in their triggers, values and patterns (words, "a phrase", par*), or those that
        promote, demote or fire on a token, such as " Paris". Matches stand in «marks».
        """
        name, here = self._find(atlas)
        hits = search(self.index(name), text, limit=limit, by=by, progress=False)
        return encode({"atlas": name, "hits": _with_labels(hits.to_dicts(), here)}, most_bytes)

    def show(self, memory: Text, sign: Sign = 1, atlas: Named = None, most_bytes: Size = USUAL) -> str:
        """What an atlas knows of a memory (L10.M222), or of at most 20 (L5.M0-3,L6.M1): its triggers (the prefixes with
        its highest coefficients, or with sign -1 its lowest, but for near-duplicates), its value's top and bottom
        tokens, how often it fires, its labels and patterns, memories with similar values.
        """
        name, here = self._find(atlas)
        documents = [MemoryDocument(here, one).to_dict() for one in memories_of(memory, here)]
        for document in documents:
            different = (row for row in document["triggers"] if row["rank"] == row["fold"])
            document["triggers"] = [row | {"text": None} for row in different if row["sign"] == sign]
        return encode({"atlas": name, "memories": documents}, most_bytes)

    def layer(self, layer: int, limit: Count = 10, atlas: Named = None, most_bytes: Size = USUAL) -> str:
        """A layer's memories, counted from 0, those first that fire at the largest share of prefixes."""
        name, here = self._find(atlas)
        rows = here[layer].table().drop("memory").rename({"name": "memory"}).sort("fires", descending=True)
        told = {"atlas": name, "count": rows.height, "never_fire": rows.filter(fires=0).height}
        return encode(told | {"memories": _with_labels(rows.head(limit).to_dicts(), here)}, most_bytes)

    def compare(self, first: Named = None, second: Named = 2, most_bytes: Size = USUAL) -> str:
        """What changed between two atlases of one text: by layer the overlap (Jaccard) of triggers beside that of
        permuted memories, and the features born, died or repurposed, the largest effects first.
        """
        (one, before), (other, after) = self._find(first), self._find(second)
        compared = compare(before, after, progress=self._clock()).to_dict()
        changed = [{"change": row["kind"]} | row for row in compared["changed"]]
        return encode(compared | {"first": one, "second": other, "changed": changed}, most_bytes)

    def trace(
        self,
        prompt: Text,
        changes: list[Text] | None = None,
        position: int | None = None,
        source: Source = None,
        most_bytes: Size = USUAL,
    ) -> str:
        """What every layer predicts after a position of a prompt (the last), from the last layer down, and the memories
        that contribute most there. With changes (L10.M222=0, L10.M222*2) the prediction before and after them. A model
        that reads sentences whole is asked at the mask, which the prompt holds once (also for `attribute`).
        """
        if any(change.lstrip().startswith("@") for change in changes or ()):
            raise MemoryIdError("@FILE names a file, which no tool reads; write a change as L10.M222=0")
        with self._using([prompt], source) as (model, here):
            from mnemoscope.tracing import compare, trace

            if changes:
                both = compare(model, prompt, changes, top=5, memories=0)
                moved = [one.position for one in both.differences if one.changed]
                change = both.differences[both.before.index_of(position)].to_dict()
                return encode(change | {"top_token_changed_at": moved}, most_bytes)
            traced = trace(model, prompt, top=2, memories=3)
            at = traced.index_of(position)
            layers = [states[at].to_dict() for states in reversed(traced.places)]
            for layer in layers:
                layer["memories"] = _with_labels(layer["memories"], here)
            return encode(traced.positions[at].to_dict() | {"layers": layers}, most_bytes)

    def attribute(
        self,
        prompt: Text,
        target: Text | None = None,
        against: Text | None = None,
        source: Source = None,
        most_bytes: Size = USUAL,
    ) -> str:
        """Which memories made the model prefer `target` (a next token with its space; else its own) to `against` (else
        the next best). `difference`: the logit difference F; `parts` add up to it. Of a memory `direct`: its direct
        effect; `ablation`: F less F without it. `curve`: F without the first k together, and without controls, others
        as strong at their places: lowest, median, highest of five draws.
        """
        with self._using([prompt], source) as (model, here):
            from mnemoscope.attribution import attribute

            asked: dict[str, Any] = {"target": target, "against": against, "singles": 32, "top": 32, "edges": 0}
            answer = attribute(model, prompt, **asked, atlas=here, progress=False).to_dict()
        parts = {name: sum(one) if isinstance(one, list) else one for name, one in answer.pop("direct").items()}
        return encode(answer | {"parts": parts}, most_bytes)

    def test_memories(
        self,
        memories: Text,
        should_fire: Examples,
        should_not_fire: Examples,
        sign: Sign = 1,
        source: Source = None,
        most_bytes: Size = USUAL,
    ) -> str:
        """Test an idea about at most 20 memories on examples. A memory's score of an example is its highest coefficient
        times `sign` at any position. `auc`: how often an example that should fire it scores higher than one that should
        not (0.5: chance); `p`: the share of 2,000 shuffles with an AUC as high; `as_good`: how many other memories of
        the layer have one as high. `together`: scores divided by their deviation, and summed. `kl`: the divergence of
        the next-token distribution (nats, mean over positions) when all of them are set to 0; `controls_kl`: when
        others as strong at their places are (lowest, median, highest of five draws): within it is no effect of these.
        """
        with self._using([*should_fire, *should_not_fire], source) as (model, here):
            from mnemoscope.agents.examples import measure

            told = measure(model, memories_of(memories, model), should_fire, should_not_fire, sign=sign)
        return encode(told | {"memories": _with_labels(told["memories"], here)}, most_bytes)

    def _find(self, atlas: Named) -> tuple[str, Atlas]:
        """An atlas by its name or number, the first by default."""
        names = dict(enumerate(self.atlases, 1))
        for number, name in names.items():
            if str(1 if atlas is None else atlas) in (name, str(number)):
                return name, self.atlases[name]
        raise AtlasNotFound(f"no atlas {str(atlas)[:60]!r} is here; started with are {names}")

    def _clock(self) -> Callable[..., None]:
        from anyio import from_thread

        end, thread = time.monotonic() + self.seconds, get_ident()

        def tick(*_: object) -> None:
            if get_ident() == thread:
                from_thread.check_cancelled()
                if time.monotonic() > end:
                    raise TimeoutError(f"stopped after {self.seconds:g} s; ask for less, such as a shorter prompt")

        return tick

    @contextmanager
    def _using(self, prompts: Sequence[str], source: str | None) -> "Iterator[tuple[LanguageModel, Atlas]]":
        """The model, to read these prompts, each with the source, when no other call uses it; and the first atlas,
        which is its.
        """
        if self.model is None:
            raise OptionError("no model is here; start with one: `mnemoscope mcp ATLAS --model MODEL`")
        model = self.model.result().with_source(source)
        tokens = sum(len(model.prompt_tokens(prompt)) + len(model.reading.given or ()) for prompt in prompts)
        if tokens > TOKENS:
            raise PromptError(f"{tokens:,} tokens are too many for one call; give at most {TOKENS:,}")
        from torch.nn.modules.module import register_module_forward_pre_hook

        with self.lock, register_module_forward_pre_hook(self._clock()):  # the time begins when the model is free
            yield model, next(iter(self.atlases.values()))


def memories_of(text: str, holder: HasMemories, most: int = 20) -> list[MemoryId]:
    """The memories that a text names. Raises MemoryIdError for many, and for those of a file."""
    if text.lstrip().startswith("@"):
        raise MemoryIdError("@FILE names a file, which no tool reads; name memories, such as L5.M7,L6.M1")
    named = NamedMemories.parse(text).of(holder)
    if len(named) > most:
        raise MemoryIdError(f"{text[:60]!r} names {len(named):,} memories; name at most {most}")
    return named


def _with_labels(rows: list[dict[str, Any]], atlas: Atlas) -> list[dict[str, Any]]:
    features = [(MemoryId.parse(row["memory"]), row.get("sign", 1)) for row in rows]
    said = listed_labels(atlas, features)
    return [row | {"label": said.get(one)} for row, one in zip(rows, features, strict=True)]
