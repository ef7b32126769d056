"""Whether two atlases can be compared: one text, cut and tokenised alike, with triggers chosen alike."""

from hashlib import sha256
from typing import Any

from mnemoscope.atlas import Atlas
from mnemoscope.errors import AtlasesDiffer, AtlasUnfinished
from mnemoscope.foundation.formatting import join_words

_SAME = {
    "split": None, "sample": None, "max_sentences": None, "max_tokens": None, "text_field": None, "ids_field": None,
    "skip_special": False, "skip_bad_rows": 0, "triggers": None, "per_sentence": None,
}  # fmt: skip
"""Options that decide which triggers there are, and what a plan means that lacks one."""
_NOTED = ("rules", "torch", "transformers", "tokenizers", "sentencex", "dtype", "device", "threads", "batch_tokens")


def check_comparable(first: Atlas, second: Atlas) -> str:
    """Returns what else the plans differ in, in words, possibly none. Raises AtlasesDiffer with the first difference
    that forbids a comparison, AtlasUnfinished for a part.
    """
    for atlas in (first, second):
        if part := atlas.manifest.part:
            raise AtlasUnfinished(f"{atlas.path} is {part}; join all parts with `mnemoscope merge`, then compare")
    other = _facts(second)
    for name, value in _facts(first).items():
        if value != other[name]:
            raise AtlasesDiffer(
                f"{first.path} and {second.path} differ in {name} ({value}, {other[name]}); "
                "compare atlases of one text, mined alike"
            )
    plans = first.manifest.plan, second.manifest.plan
    noted = [f"{name} ({plans[0].get(name)}, {plans[1].get(name)})" for name in _NOTED]
    noted = [text for name, text in zip(_NOTED, noted, strict=True) if plans[0].get(name) != plans[1].get(name)]
    return f"{first.path.name} and {second.path.name} differ in {join_words(noted)}" if noted else ""


def _facts(atlas: Atlas) -> dict[str, Any]:
    plan, text, model = atlas.manifest.plan, atlas.manifest.corpus, atlas.manifest.model
    # Rows of the head beyond the tokenizer's are empty, and models differ in their number.
    tokens = zip(atlas.vocabulary.raw, atlas.table("tokens", columns=["count"])["count"].to_list(), strict=True)
    return {
        **{f"--{name.replace('_', '-')}": plan.get(name, usual) for name, usual in _SAME.items()},
        "the --seed of --sample": plan.get("seed") if plan.get("sample") is not None else None,
        "the text": f"{text.spec}, sha256 {text.fingerprint[:16]}",
        "the tokenizer": f"sha256 {sha256(repr([row for row in tokens if any(row)]).encode()).hexdigest()[:16]}",
        "the token before every sentence": model.beginning.token,
        "the windows of sentences longer than the context": text.counts.get("windows"),
    }
