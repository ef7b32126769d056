"""One layer after one prefix as the sum that it is: weighted values, the others, the bias (paper, Figure 1)."""

from typing import Any

import torch
from torch import Tensor

from mnemoscope.atlas import Atlas
from mnemoscope.errors import ModelUnsupported, OptionError
from mnemoscope.foundation.memory_changes import Interventions, counted_from, interventions_of
from mnemoscope.foundation.options.chat_prompt import Prompt, choose_position, first_position, options_of, own_tokens
from mnemoscope.foundation.origin import made_by
from mnemoscope.models import Block, LanguageModel, read_blocks
from mnemoscope.models.object_state import hold_model
from mnemoscope.patterns.labels import listed_labels
from mnemoscope.tracing.interventions import intervene
from mnemoscope.tracing.predictions import best_predictions, ids_of
from mnemoscope.tracing.records import Token, plain
from mnemoscope.tracing.scoring import scores
from mnemoscope.tracing.scoring.ranking import top

TOP = 5
"""Tokens of each value and stream."""
_STREAMS = ("residual", "ffn_update", "layer_output")


@scores.opens
def layer_sum(
    model: LanguageModel,
    prompt: Prompt,
    layer: int,
    *,
    position: int | None = None,
    memories: int = 10,
    atlas: Atlas | None = None,
    interventions: Interventions = None,
) -> dict[str, Any]:
    """The layer's sum y after a position of the prompt, as plain data: the `memories` with the largest `contribution`
    |m| norm(v), each with the best tokens of sign(m) v and its `label` by an atlas (`listed_labels`); `others`, `bias`
    and `total`, each with its `length`; and what residual, update and output predict. `along` is the part of each
    vector in the direction of y: these add up to the length of y. `normed`: the layer adds what its own norm or gate
    makes of y. `position` counts the `own` tokens of a chat, as in `trace`.
    """
    if not 0 <= layer < model.sizes.layers:
        raise OptionError(f"there is no layer {layer}: the model has layers 0 to {model.sizes.layers - 1}")
    if memories < 1:
        raise OptionError(f"memories={memories} is impossible; it must be 1 or more")
    parts = model.layer(layer)
    if parts.ffn.branches:
        raise ModelUnsupported(f"layer {layer} of {model.spec} has a norm behind each branch: its values do not add up")
    scores.check_wide_numbers(model)
    if atlas is not None:
        scores.require_model_of(model, atlas)
    prompt, changes = model.prompt_text(prompt), interventions_of(interventions, of=model)
    tokens, first, own = model.prompt_tokens(prompt), first_position(prompt), own_tokens(prompt)
    at_mask = position is None and not model.reading.causal
    place = (
        model.reading.asked_column(tokens) if at_mask else choose_position(len(tokens), position, first=first, own=own)
    )
    column, read = model.reading.own(len(tokens)).start + place, dict[str, Tensor]()

    def keep(_: int, block: Block) -> None:
        whole = {name: getattr(block, name) for name in ("coefficients", "ffn_output", "weights", *_STREAMS)}
        read.update({name: tensor[0, column].clone() for name, tensor in whole.items() if tensor is not None})

    with hold_model(model), model.lock, torch.inference_mode(), intervene(model, counted_from(changes, first)):
        with read_blocks(model, keep, layers=[layer]):
            model.backbone(ids_of(model, tokens))
        m, y, weights = read["coefficients"], read["ffn_output"].float(), read.get("weights")
        values = model.values(layer).to(m.device)
        best, sizes = top(scores.contributions(m[None], scores.value_norms(model, layer)), memories)
        listed = best[0, : int((sizes > 0).sum())]
        rest = m.index_fill(0, listed, 0)
        others = rest.float() @ values.float() if weights is None else parts.ffn.write(rest)
        given = parts.ffn.bias(weights)
        bias = torch.zeros_like(y) if given is None else given.reshape(y.shape)
        vectors = torch.stack([*(m[listed, None].float() * values[listed].float()), others, bias, y]).double()
        along = (vectors @ (vectors[-1] / vectors[-1].norm().clamp_min(1e-30))).tolist()
        folded = scores.folded_values(model, layer, listed, m[listed].sign())
        tops = top(model.scorer().scores(folded), TOP)[0].tolist()
        streams = torch.stack([read[name] for name in _STREAMS]).to(model.device)
        residual, update, output = best_predictions(model, streams, TOP, changed=bool(changes))
    mined = None if atlas is None else atlas.manifest_hash
    texts, options = model.vocabulary()[0], options_of(prompt) | {"layer": layer, "position": position}
    options |= {"memories": memories, "interventions": list(map(str, changes))}
    features = [(model.numbering(layer).name(layer, i), int(m[i].sign())) for i in listed.tolist()]
    labels = {} if atlas is None else listed_labels(atlas, features)
    rows = []
    for number, (memory, sign) in enumerate(features):
        best_tokens = tuple(Token(id, texts[id]) for id in tops[number])
        numbers = {"contribution": float(sizes[0, number]), "along": along[number], "top": plain(best_tokens)}
        about = {"memory": str(memory), "coefficient": float(m[listed[number]])}
        rows.append({**about, **numbers, "label": labels.get((memory, sign))})
    counts = {"others": int((rest != 0).sum()), "bias": 0, "total": int((m != 0).sum())}
    return {
        **{"model": model.spec, "layer": layer, "position": place + first, "own": own},
        "where": "after" if model.reading.causal else "at",
        "tokens": plain(tuple(Token(id, texts[id]) for id in tokens[: place + 1])),
        "memories": rows,
        **{
            name: {"memories": count, "length": float(vector.norm()), "along": part}
            for (name, count), vector, part in zip(counts.items(), vectors[-3:], along[-3:], strict=True)
        },
        "normed": parts.post_norm is not None or parts.output_gate is not None,
        **{"residual": plain(residual), "ffn": plain(update), "output": plain(output)},
        "made_by": made_by(model=model.fingerprint, atlas=mined, options=options, seed=None),
    }
