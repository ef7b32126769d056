"""The methods box: the facts needed to judge the numbers or to reproduce them, from the manifest."""

import json
from collections.abc import Mapping
from typing import Any

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.form import Manifest, MinedCorpus, MinedModel
from mnemoscope.foundation.formatting import number, percent, pluralise
from mnemoscope.questions.question import Answer

Facts = list[tuple[str, str]]


def methods(atlas: Atlas, answers: Mapping[str, Answer]) -> list[tuple[str, Facts]]:
    manifest = atlas.manifest
    return [
        ("Model", _model(manifest.model)),
        ("Text", _text(manifest.corpus, manifest.plan)),
        ("Questions", _questions(manifest, answers)),
        ("Plan", _plan(manifest)),
    ]


def _model(model: MinedModel) -> Facts:
    sizes = model.sizes
    layers = f"{pluralise(len(sizes.memories), 'layer')} of"
    memories = f"{' or '.join(f'{size:,}' for size in sorted(set(sizes.memories)))} memories"
    rest = [f"{name} {getattr(sizes, name):,}" for name in ("hidden", "vocabulary", "context")]
    share = percent(sizes.ffn_parameters / max(1, sizes.parameters))
    activation = f"gated {model.activation}" if model.gated else model.activation
    errors = [f"{name} {error:.1g}" for name, error in sorted(model.proof.items()) if error is not None]
    return _known_facts(
        ("model", model.spec),
        ("revision", model.revision),
        ("fingerprint", model.fingerprint),
        ("shape", ", ".join([f"{layers} {memories}", *rest])),
        ("parameters", f"{sizes.parameters:,}, {share} of them in feed-forward layers"),
        ("kind", ", ".join((model.family, model.block, activation))),
        ("load-time proof, largest errors", ", ".join(errors)),
    )


def _known_facts(*facts: tuple[str, str | None]) -> Facts:
    return [(name, text) for name, text in facts if text]


def _text(corpus: MinedCorpus, plan: Mapping[str, Any]) -> Facts:
    counts, validation, overlap = corpus.counts, plan.get("validation"), corpus.overlap
    held = pluralise(counts["held_out_sentences"], "sentence")
    also = f"{overlap.sentences:,} of {overlap.of:,} validation sentences ({percent(overlap.share)})"
    return [
        ("text", corpus.spec),
        ("fingerprint", corpus.fingerprint),
        ("mined", ", ".join(pluralise(counts[name], noun) for name, noun in _COUNTED)),
        ("held out", f"{percent(corpus.held_out_share)} of the sentences ({held})"),
        ("validation text", "the held-out sentences" if validation is None else str(validation)),
        ("validation sentences also mined", also),
    ]


_COUNTED = (("documents", "document"), ("mined_sentences", "sentence"), ("mined_tokens", "token"))


def _questions(manifest: Manifest, answers: Mapping[str, Answer]) -> Facts:
    questions = manifest.questions
    one, two = (questions.removals_excluded[length] for length in ("length_one", "length_two"))
    kinds = dict.fromkeys(answer.interval for answer in answers.values() if answer.interval)
    return _known_facts(
        ("validation prefixes (Figures 7 to 11)", f"{questions.prefixes:,} of {questions.prefixes_asked:,} asked for"),
        ("memories per layer whose triggers lose a token (Figure 3)", str(questions.removals_per_layer)),
        ("triggers of one token, left out of Figure 3", f"{one:,}"),
        ("triggers of two tokens, left out of Figure 3", f"{two:,}" if two else None),
        *((f"projection of {name}", projection) for name, projection in sorted(manifest.projections.items())),
        ("95 % intervals", "; ".join(kinds) or "none"),
    )


def _plan(manifest: Manifest) -> Facts:
    left_out = {"model", "model_fingerprint", "corpus", "corpus_fingerprint", "validation", "layers"}
    names = sorted(manifest.plan.keys() - left_out)
    facts = [(name.replace("_", " "), _value(manifest.plan[name])) for name in names]
    facts.append(("batches computed in halves for want of memory", f"{len(manifest.out_of_memory_batches):,}"))
    facts.append(("hash of the plan", manifest.plan_hash))
    facts.append(("mnemoscope", f"{manifest.package}, atlas schema {manifest.schema}"))
    return facts


def _value(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return number(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
