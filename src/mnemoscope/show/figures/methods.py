"""The methods box: the facts needed to judge the numbers or to reproduce them, from the manifest.

Facts that an older manifest lacks are left out.
"""

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
    sizes, proof, parameters = model.sizes, model.proof or {}, ""
    layers = f"{pluralise(len(sizes.memories), 'layer')} of"
    memories = f"{' or '.join(f'{size:,}' for size in sorted(set(sizes.memories)))} memories"
    rest = [f"{name} {size:,}" for name in ("hidden", "vocabulary", "context") if (size := getattr(sizes, name))]
    if sizes.parameters:
        parameters = f"{sizes.parameters:,}"
        if sizes.ffn_parameters:
            parameters += f", {percent(sizes.ffn_parameters / sizes.parameters)} of them in feed-forward layers"
    activation = f"gated {model.activation}" if model.gated and model.activation else model.activation
    errors = [f"{name} {error:.1g}" for name, error in sorted(proof.items()) if error is not None]
    return _known_facts(
        ("model", str(model.spec)),
        ("revision", model.revision),
        ("fingerprint", model.fingerprint),
        ("shape", ", ".join([f"{layers} {memories}", *rest])),
        ("parameters", parameters),
        ("kind", ", ".join(name for name in (model.family, model.block, activation) if name)),
        ("load-time proof, largest errors", ", ".join(errors)),
    )


def _known_facts(*facts: tuple[str, str | None]) -> Facts:
    return [(name, text) for name, text in facts if text]


def _text(corpus: MinedCorpus, plan: Mapping[str, Any]) -> Facts:
    counts, validation, held, also = corpus.counts, plan.get("validation"), "", ""
    if corpus.held_out_share is not None:
        held = f"{percent(corpus.held_out_share)} of the sentences"
        if (sentences := counts.get("held_out_sentences")) is not None:
            held += f" ({pluralise(sentences, 'sentence')})"
    if overlap := corpus.overlap:
        also = f"{overlap.sentences:,} of {overlap.of:,} validation sentences ({percent(overlap.share)})"
    return _known_facts(
        ("text", str(corpus.spec)),
        ("fingerprint", corpus.fingerprint),
        ("mined", ", ".join(pluralise(counts[name], noun) for name, noun in _COUNTED if name in counts)),
        ("held out", held),
        ("validation text", "the held-out sentences" if validation is None else str(validation)),
        ("validation sentences also mined", also),
    )


_COUNTED = (("documents", "document"), ("mined_sentences", "sentence"), ("mined_tokens", "token"))


def _questions(manifest: Manifest, answers: Mapping[str, Answer]) -> Facts:
    questions, prefixes, removals = manifest.questions, "", ""
    if questions.prefixes is not None:
        requested = questions.prefixes if questions.prefixes_asked is None else questions.prefixes_asked
        prefixes = f"{questions.prefixes:,} of {requested:,} asked for"
    if questions.removals_per_layer is not None:
        removals = str(questions.removals_per_layer)
    one, two = (questions.removals_excluded.get(length) for length in ("length_one", "length_two"))
    kinds = dict.fromkeys(answer.interval for answer in answers.values() if answer.interval)
    return _known_facts(
        ("validation prefixes (Figures 7 to 11)", prefixes),
        ("memories per layer whose triggers lose a token (Figure 3)", removals),
        ("triggers of one token, left out of Figure 3", None if one is None else f"{one:,}"),
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
