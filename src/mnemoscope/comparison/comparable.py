"""Whether two atlases can be compared: one text, cut and tokenised alike, with triggers chosen alike."""

from hashlib import sha256
from typing import Any

from mnemoscope.atlas import Atlas
from mnemoscope.errors import AtlasesDiffer, AtlasUnfinished

_OPTIONS = (
    *("split", "sample", "max_sentences", "max_tokens", "text_field", "ids_field", "skip_special", "skip_bad_rows"),
    *("triggers", "per_sentence"),
)
_NOTED = ("torch", "transformers", "tokenizers", "sentencex", "dtype", "device", "threads", "batch_tokens")


def check_comparable(first: Atlas, second: Atlas) -> str:
    """Returns what else the plans differ in, in words. Raises AtlasesDiffer with the first difference that forbids a
    comparison, AtlasUnfinished for a part.
    """
    for atlas in (first, second):
        if part := atlas.manifest.part:
            raise AtlasUnfinished(f"{atlas.path} is {part}; join all parts with `mnemoscope merge`, then compare")
    for name, (one, other) in _pair(_facts(first), _facts(second)):
        raise AtlasesDiffer(f"{first.path} and {second.path} differ in {name} ({one}, {other}); mine one text alike")
    plans = ({name: atlas.manifest.plan.get(name) for name in _NOTED} for atlas in (first, second))
    noted = [f"{name} ({one}, {other})" for name, (one, other) in _pair(*plans)]
    return f"{first.path.name} and {second.path.name} differ in {', '.join(noted)}" if noted else ""


def _pair(first: dict[str, Any], second: dict[str, Any]) -> list[tuple[str, tuple[Any, Any]]]:
    return [(name, (value, second[name])) for name, value in first.items() if value != second[name]]


def _facts(atlas: Atlas) -> dict[str, Any]:
    plan, text = atlas.manifest.plan, atlas.manifest.corpus
    # Rows of the head beyond the tokenizer's are empty, and models differ in their number.
    tokens = zip(atlas.vocabulary.raw, atlas.table("tokens", columns=["count"])["count"].to_list(), strict=True)
    return {
        **{f"--{name.replace('_', '-')}": plan.get(name) or None for name in _OPTIONS},
        "the --seed of --sample": plan.get("seed") if plan.get("sample") else None,
        "the text": f"{text.spec}, sha256 {text.fingerprint[:16]}",
        "the tokenizer": f"sha256 {sha256(repr([row for row in tokens if any(row)]).encode()).hexdigest()[:16]}",
        "the token before every sentence": atlas.manifest.model.beginning.token,
        "the windows of sentences longer than the context": text.counts.get("windows"),
    }
