"""The methods box: everything that one needs to judge the numbers, or to make them again; read from the manifest.

Says what the manifest says; what an older manifest does not say is left out.
"""

import json
from collections.abc import Mapping
from typing import Any

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.form import Manifest, MinedCorpus, MinedModel
from mnemoscope.formatting import number, percent, pluralise
from mnemoscope.questions.question import Answer

Facts = list[tuple[str, str]]


def methods(atlas: Atlas, answers: Mapping[str, Answer]) -> list[tuple[str, Facts]]:
    """Groups of facts, each a name and what there is to say."""
    manifest = atlas.manifest
    return [
        ("Model", _model(manifest.model)),
        ("Text", _text(manifest.corpus, manifest.plan)),
        ("Questions", _questions(manifest, answers)),
        ("Plan", _plan(manifest)),
    ]


def _model(model: MinedModel) -> Facts:
    sizes = model.sizes
    memories = sorted(set(sizes.memories))
    facts = [("model", str(model.spec))]
    if model.revision:
        facts.append(("revision", model.revision))
    facts.append(("fingerprint", model.fingerprint))
    shape = f"{pluralise(len(sizes.memories), 'layer')} of {' or '.join(f'{size:,}' for size in memories)} memories"
    rest = [f"{name} {size:,}" for name in ("hidden", "vocabulary", "context") if (size := getattr(sizes, name))]
    facts.append(("shape", ", ".join([shape, *rest])))
    if sizes.parameters:
        share = sizes.ffn_parameters
        part = "" if not share else f", {percent(share / sizes.parameters)} of them in feed-forward layers"
        facts.append(("parameters", f"{sizes.parameters:,}{part}"))
    kind = [name for name in (model.family, model.block) if name]
    if model.activation:
        kind.append(f"{'gated ' if model.gated else ''}{model.activation}")
    if kind:
        facts.append(("kind", ", ".join(kind)))
    if proof := model.proof:
        errors = ", ".join(f"{name} {error:.1g}" for name, error in sorted(proof.items()) if error is not None)
        facts.append(("load-time proof, largest errors", errors))
    return facts


def _text(corpus: MinedCorpus, plan: Mapping[str, Any]) -> Facts:
    counts = corpus.counts
    facts = [("text", str(corpus.spec)), ("fingerprint", corpus.fingerprint)]
    told = [pluralise(counts[name], noun) for name, noun in _COUNTED if name in counts]
    if told:
        facts.append(("mined", ", ".join(told)))
    if corpus.held_out_share is not None:
        held = counts.get("held_out_sentences")
        aside = "" if held is None else f" ({pluralise(held, 'sentence')})"
        facts.append(("held out", f"{percent(corpus.held_out_share)} of the sentences{aside}"))
    validation = plan.get("validation")
    facts.append(("validation text", "the held-out sentences" if validation is None else str(validation)))
    if overlap := corpus.overlap:
        said = f"{overlap.sentences:,} of {overlap.of:,} validation sentences ({percent(overlap.share)})"
        facts.append(("validation sentences also mined", said))
    return facts


_COUNTED = (("documents", "document"), ("mined_sentences", "sentence"), ("mined_tokens", "token"))


def _questions(manifest: Manifest, answers: Mapping[str, Answer]) -> Facts:
    facts = []
    asked = manifest.questions
    if (prefixes := asked.prefixes) is not None:
        wanted = prefixes if asked.prefixes_asked is None else asked.prefixes_asked
        said = f"{prefixes:,} of {wanted:,} asked for"
        facts.append(("validation prefixes (Figures 7 to 11)", said))
    if asked.removals_per_layer is not None:
        facts.append(("memories per layer whose triggers lose a token (Figure 3)", str(asked.removals_per_layer)))
    excluded = asked.removals_excluded
    if "length_one" in excluded:
        facts.append(("triggers of one token, left out of Figure 3", f"{excluded['length_one']:,}"))
    if excluded.get("length_two"):
        facts.append(("triggers of two tokens, left out of Figure 3", f"{excluded['length_two']:,}"))
    for name, projection in sorted(manifest.projections.items()):
        facts.append((f"projection of {name}", projection))
    kinds = dict.fromkeys(answer.interval for answer in answers.values() if answer.interval)
    facts.append(("95 % intervals", "; ".join(kinds) or "none"))
    return facts


def _plan(manifest: Manifest) -> Facts:
    left_out = {"model", "model_fingerprint", "corpus", "corpus_fingerprint", "validation", "layers"}
    told = sorted(manifest.plan.keys() - left_out)
    facts = [(name.replace("_", " "), _value(manifest.plan[name])) for name in told]
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
