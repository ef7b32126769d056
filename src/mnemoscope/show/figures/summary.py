"""What was mined, and what a reader must know before the numbers, in sentences."""

from mnemoscope.atlas import Atlas
from mnemoscope.foundation.formatting import format_layers, percent, pluralise
from mnemoscope.foundation.options.mining_options import MiningOptions
from mnemoscope.foundation.words import KEYS_ONLY


def describe_mining(atlas: Atlas) -> list[str]:
    model, corpus = atlas.manifest.model, atlas.manifest.corpus
    counts, sizes = corpus.counts, model.sizes
    total, depth = sum(atlas.memories(layer) for layer in atlas.layers), len(sizes.memories)
    where = f"all {depth} layers" if len(atlas.layers) == depth else f"{format_layers(atlas.layers)} of {depth}"
    text, words = pluralise(counts["mined_sentences"], "sentence"), atlas.reading.words
    sentences = [
        f"{total:,} memories in {where} of the model {model.spec}. Feed-forward layers hold"
        f" {percent(sizes.ffn_parameters / max(1, sizes.parameters))} of its {sizes.parameters:,} parameters.",
        f"The model read {pluralise(counts['mined_tokens'], 'token')} in {text} of {corpus.spec}; of each memory, the"
        f" {atlas.manifest.plan['triggers']} {words['trigger_texts']} on which it fires most strongly were kept: its"
        " triggers.",
    ]
    dead = sum(int((atlas.table("activity", layer=layer)["positive"] == 0).sum()) for layer in atlas.layers)
    sentences.append(
        f"{dead:,} of them never fired ({percent(dead / total)})." if dead else "Every one of them fired at least once."
    )
    questions = atlas.manifest.questions
    if (gave := questions.prefixes) and gave < questions.prefixes_asked:
        sentences.append(
            f"Figures 7 to 11 are asked of {pluralise(gave, words['case'], words['cases'])}, all that the validation"
            " text gives."
        )
    return sentences


def warnings(atlas: Atlas) -> list[str]:
    texts = []
    overlap, questions, words = atlas.manifest.corpus.overlap, atlas.manifest.questions, atlas.reading.words
    if overlap.sentences:
        texts.append(
            f"{overlap.sentences:,} of the {overlap.of:,} validation sentences ({percent(overlap.share)}) are"
            " also in the mined text, so Figures 7 to 11 are not about unseen text only."
        )
    target = questions.prefixes_asked
    if (gave := questions.prefixes) < target != MiningOptions.prefixes:  # the default number is no user's request
        texts.append(
            f"The validation text gave {pluralise(gave, words['case'], words['cases'])} of the"
            f" {target:,.0f} asked for: intervals of Figures 7 to 11 are wider for it."
        )
    if atlas.manifest.keys_only:
        texts.append(f"{KEYS_ONLY[0].upper()}{KEYS_ONLY[1:]}.")
    depth = len(atlas.manifest.model.sizes.memories)
    if len(atlas.layers) < depth:
        texts.append(f"Only {format_layers(atlas.layers)} of the model's {depth} layers were mined.")
    return texts
