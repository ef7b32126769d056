"""The texts of a run: opened as options or a plan say, tokenized into the work folder, and notes on them."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil, floor, log10
from pathlib import Path

from mnemoscope.atlas.manifest import WORK, as_mined
from mnemoscope.corpus import Encoder, Render, Source, TokenizedCorpus, open_source, prepare
from mnemoscope.corpus.sources.row_fields import PAIR
from mnemoscope.errors import OptionError
from mnemoscope.foundation.formatting import plain_percent
from mnemoscope.foundation.options.mining_options import RULES, MiningOptions, is_chat
from mnemoscope.foundation.progress import Progress
from mnemoscope.foundation.reading import SOURCE
from mnemoscope.models import IdTokens, LanguageModel
from mnemoscope.models.proof.company import prove_long_rows
from mnemoscope.models.tokens.chat_reader import chat_template
from mnemoscope.models.tokens.model_tokens import Tokens
from mnemoscope.models.tokens.python_tokens import PythonTokens
from mnemoscope.runs.plan import MiningPlan

_MOST = 0.5
"""The share of the text from which on there is no warning of a limit."""
_SPARE = 1.1
"""How much more is drawn than the limit takes on average, since documents differ in length."""
_ROUNDING = 1e-9


Texts = Mapping[str, Source]
"""The mined text, `corpus`, and the separate `validation` text, if any."""


def open_texts(directory: Path, corpus: str, validation: str | None, like: MiningOptions | MiningPlan) -> Texts:
    """The texts of these names, or of the names that the folder's atlas has for them; raises what opening one does."""
    source = open_text(as_mined(directory, "corpus", corpus), like).with_sample(like.sample, like.seed)
    if validation is None:
        return {"corpus": source}
    return {"corpus": source, "validation": open_text(as_mined(directory, "validation", validation), like)}


def prepare_texts(
    texts: Texts, directory: Path, model: LanguageModel, plan: MiningPlan, *, progress: Progress
) -> TokenizedCorpus:
    """The texts, tokenized in the work folder of `directory`, or opened there. Proves the model on rows beyond its
    boundaries if there are any.
    """
    encoder, made_of, render = encoder_of(model, plan)
    # What decides how the text is cut and tokenised, beside the text and the plan's own options.
    libraries = {"tokenizers": plan.tokenizers, "sentencex": plan.sentencex}
    copy = prepare(
        texts["corpus"],
        encoder,
        directory=directory / WORK / "text",
        longest=model.longest,
        split=plan.split,
        vocabulary=model.sizes.vocabulary,
        max_sentences=plan.max_sentences,
        max_tokens=plan.max_tokens,
        validation=texts.get("validation"),
        render=render,
        made_with={"tokenizer": made_of, "rules": str(RULES), **libraries},
        progress=progress,
    )
    both = [copy, *([copy.validation] if isinstance(copy.validation, TokenizedCorpus) else [])]
    prove_long_rows(model, model.reading.columns(max(int(text.lengths.max(initial=0)) for text in both)))
    return copy


def text_notes(source: Source, copy: TokenizedCorpus, model: LanguageModel, plan: MiningPlan) -> Iterator[str]:
    """Notes on a text that was read just now, given once."""
    if source.meter.done:
        if note := limit_note(source, copy):
            yield note
        if plan.ids_field is None and not is_chat(plan.text_field) and chat_template(model.reader):
            unused = "the model's chat template is not used: the text is read as it stands"
            yield f"{unused}; --text-field messages reads chats"


def open_text(spec: str | os.PathLike[str], like: MiningOptions | MiningPlan) -> Source:
    """A text, whole, as options or plan say it is read; raises what opening a text raises."""
    return open_source(
        os.fspath(spec),
        text_field=like.text_field,
        ids_field=like.ids_field,
        split=like.cut if isinstance(like, MiningOptions) else like.split,
        chat=is_chat(like.text_field),
        skip_bad_rows=like.skip_bad_rows,
        source_field=like.source_field,
    )


def encoder_of(model: LanguageModel, like: MiningOptions | MiningPlan) -> tuple[Encoder, str, Render | None]:
    """The encoder of a run's texts, its fingerprint, and the renderer of chats, if any."""
    ids = like.ids_field is not None
    if like.source_field is not None:
        if model.sources is None:
            raise OptionError("--source-field is of encoder-decoders; this model reads no source, so leave it out")
        return PairEncoder(model), model.tokenizer_fingerprint, None
    if model.sources is not None:
        raise OptionError(
            "this model reads a source and writes a text; give .jsonl or .parquet with a field for each, and name them"
            " (--source-field, --text-field)"
        )
    if is_chat(like.text_field) and not ids:
        chat = model.chat_reader()
        return chat, chat.fingerprint, chat.render
    if not ids and not isinstance(model.reader, IdTokens):
        return model, model.tokenizer_fingerprint, None
    beginning, padding = model.beginning.token, model.ends.union(() if model.padding is None else [model.padding])
    made_of = f"ids after {beginning}" if ids else model.tokenizer_fingerprint
    return IdTokens(beginning=beginning, ending=model.reading.after, padding=padding), made_of, None


@dataclass(frozen=True)
class PairEncoder:
    """Reads pairs of a source and a text."""

    model: LanguageModel

    def encode(self, texts: list[str]) -> list[list[int]]:
        sources, targets = zip(*(text.split(PAIR) for text in texts), strict=True)
        assert self.model.sources is not None
        both = zip(self.model.encode([*targets]), self.model.sources.encode([*sources]), strict=True)
        return [[*target, SOURCE, *source] for target, source in both]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        return self.model.offsets(text.split(PAIR)[1])


def special_tokens(model: LanguageModel) -> frozenset[int]:
    """The tokens that are marked special, end a text or fill it up."""
    if not isinstance(model.reader, Tokens | PythonTokens):
        raise OptionError(f"skip_special: no tokenizer says which tokens of {model.spec!r} are special; leave it out")
    return frozenset(model.reader.special()) | model.ends | ({model.padding} - {None})  # type: ignore[operator]


def limit_note(source: Source, copy: TokenizedCorpus) -> str | None:
    """`spread_note` of a text that was read just now; None of one read earlier, or of unknown size."""
    documents = int(copy.counts["documents"])
    if not (source.size and source.meter.done and len(copy.mined)):
        return None
    mined = int(copy.documents(copy.mined[-1:])[0]) + 1
    sample = None if source.draw is None else source.draw[0]
    return spread_note(mined, mined / documents * source.meter.done / source.size, sample)


def spread_note(documents: int, share: float, sample: float | None) -> str | None:
    """The warning when a token limit covers only the beginning of the text (`documents`, a `share` of it), with the
    `--sample` that spreads it; None from half of the text on.
    """
    if not 0 < share < _MOST:
        return None
    wanted = share * (sample or 1.0) * _SPARE
    unit = 10.0 ** (1 - floor(log10(wanted)))
    spread = ceil(wanted * unit - _ROUNDING) / unit  # two digits
    return (
        f"the limit is filled by the first {documents:,} documents, {plain_percent(share)} of the text;"
        f" --sample {spread:g} draws about as much from all of it"
    )
