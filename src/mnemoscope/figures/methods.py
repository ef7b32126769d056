"""The methods box: everything that one needs to judge the numbers, or to make them again; read from the manifest.

Says what the manifest says; what an older manifest does not say is left out.
"""

import json
from collections.abc import Mapping
from typing import Any

from mnemoscope.atlas import Atlas
from mnemoscope.formatting import counted, number, percent
from mnemoscope.questions.answered import Answered

Facts = list[tuple[str, str]]


def methods(atlas: Atlas, answers: Mapping[str, Answered]) -> list[tuple[str, Facts]]:
    """Groups of facts, each a name and what there is to say."""
    manifest = atlas.manifest
    return [
        ("Model", _model(manifest["model"])),
        ("Text", _text(manifest["corpus"], manifest["plan"])),
        ("Questions", _questions(manifest, answers)),
        ("Plan", _plan(manifest)),
    ]


def _model(model: Mapping[str, Any]) -> Facts:
    sizes: Mapping[str, Any] = model["sizes"]
    memories = sorted(set(sizes["memories"]))
    facts = [("model", str(model.get("spec")))]
    if model.get("revision"):
        facts.append(("revision", str(model["revision"])))
    facts.append(("fingerprint", str(model["fingerprint"])))
    shape = f"{counted(len(sizes['memories']), 'layer')} of {' or '.join(f'{size:,}' for size in memories)} memories"
    rest = [f"{name} {sizes[name]:,}" for name in ("hidden", "vocabulary", "context") if sizes.get(name)]
    facts.append(("shape", ", ".join([shape, *rest])))
    if sizes.get("parameters"):
        share = sizes.get("ffn_parameters")
        part = "" if not share else f", {percent(share / sizes['parameters'])} of them in feed-forward layers"
        facts.append(("parameters", f"{sizes['parameters']:,}{part}"))
    kind = [str(model[name]) for name in ("family", "block") if model.get(name)]
    if model.get("activation"):
        kind.append(f"{'gated ' if model.get('gated') else ''}{model['activation']}")
    if kind:
        facts.append(("kind", ", ".join(kind)))
    if proof := model.get("proof"):
        errors = ", ".join(f"{name} {error:.1g}" for name, error in sorted(proof.items()) if error is not None)
        facts.append(("load-time proof, largest errors", errors))
    return facts


def _text(corpus: Mapping[str, Any], plan: Mapping[str, Any]) -> Facts:
    counts: Mapping[str, Any] = corpus.get("counts", {})
    facts = [("text", str(corpus.get("spec"))), ("fingerprint", str(corpus.get("fingerprint")))]
    told = [counted(counts[name], noun) for name, noun in _COUNTED if name in counts]
    if told:
        facts.append(("mined", ", ".join(told)))
    if "held_out_share" in corpus:
        held = counts.get("held_out_sentences")
        aside = "" if held is None else f" ({counted(held, 'sentence')})"
        facts.append(("held out", f"{percent(corpus['held_out_share'])} of the sentences{aside}"))
    validation = plan.get("validation")
    facts.append(("validation text", "the held-out sentences" if validation is None else str(validation)))
    if overlap := corpus.get("overlap"):
        said = f"{overlap['sentences']:,} of {overlap['of']:,} validation sentences ({percent(overlap['share'])})"
        facts.append(("validation sentences also mined", said))
    return facts


_COUNTED = (("documents", "document"), ("mined_sentences", "sentence"), ("mined_tokens", "token"))


def _questions(manifest: Mapping[str, Any], answers: Mapping[str, Answered]) -> Facts:
    facts = []
    asked = manifest.get("questions") or {}
    if "prefixes" in asked:
        said = f"{asked['prefixes']:,} of {asked.get('prefixes_asked', asked['prefixes']):,} asked for"
        facts.append(("validation prefixes (Figures 7 to 11)", said))
    if "removals_per_layer" in asked:
        facts.append(("memories per layer whose triggers lose a token (Figure 3)", str(asked["removals_per_layer"])))
    excluded = asked.get("removals_excluded") or {}
    if "length_one" in excluded:
        facts.append(("triggers of one token, left out of Figure 3", f"{excluded['length_one']:,}"))
    if excluded.get("length_two"):
        facts.append(("triggers of two tokens, left out of Figure 3", f"{excluded['length_two']:,}"))
    for name, projection in sorted(manifest.get("projections", {}).items()):
        facts.append((f"projection of {name}", str(projection)))
    kinds = dict.fromkeys(answer.interval for answer in answers.values() if answer.interval)
    facts.append(("95 % intervals", "; ".join(kinds) or "none"))
    return facts


def _plan(manifest: Mapping[str, Any]) -> Facts:
    plan: Mapping[str, Any] = manifest["plan"]
    left_out = {"model", "model_fingerprint", "corpus", "corpus_fingerprint", "validation", "layers"}
    facts = [(name.replace("_", " "), _value(value)) for name, value in sorted(plan.items()) if name not in left_out]
    halved = manifest.get("out_of_memory_batches") or []
    facts.append(("batches computed in halves for want of memory", f"{len(halved):,}"))
    facts.append(("hash of the plan", str(manifest["plan_hash"])))
    facts.append(("mnemoscope", f"{manifest.get('package', 'unknown')}, atlas schema {manifest['schema']}"))
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
