"""Every token of a prompt masked in turn: what a model that reads sentences whole says in its place."""

import polars as pl
import torch

from mnemoscope.errors import ModelUnsupported, PromptError
from mnemoscope.models import LanguageModel
from mnemoscope.models.object_state import whole_use
from mnemoscope.tracing.predictions import best_predictions, ids_of, last_streams
from mnemoscope.tracing.scoring.ranking import rank_of
from mnemoscope.tracing.scoring.scores import opens


@opens
@whole_use
def mask_each(model: LanguageModel, prompt: str) -> pl.DataFrame:
    """What a masked model says at each token of the prompt, which is masked for it while all others are seen: a row a
    token with `position`, `token`, `predicted` and its `share`, whether that is `right`, and the token's own
    `probability` and `rank`. One forward each, in which changes of a surrounding `intervene` act.

    Raises ModelUnsupported for another model, PromptError, NotFinite.

    Args:
        model: A LanguageModel, or a name that `load_model` takes.
        prompt: Plain text without a mask, read as mining reads a sentence.
    """
    mask, rows = model.reading.mask, list[tuple[object, ...]]()
    if mask is None:
        raise ModelUnsupported(f"{model.spec} has no mask token, so none of the prompt can be masked; leave --mask out")
    tokens, texts = model.prompt_tokens(prompt), model.vocabulary()[0]
    if mask in tokens:
        raise PromptError("the prompt holds a mask, where each of its tokens is masked in turn; leave the mask out")
    for position, token in enumerate(tokens):
        with model.lock, torch.inference_mode():
            stream = last_streams(model, ids_of(model, [*tokens[:position], mask, *tokens[position + 1 :]]))
            ((best,),) = best_predictions(model, stream, 1, changed=False)
            scores = model.scores(stream, projection="lens")
            rank = int(rank_of(scores, torch.tensor([token], device=scores.device)))
            said = best.token.text, best.probability, best.token.id == token, float(scores.softmax(1)[0, token]), rank
        rows.append((position, texts[token], *said))
    columns = ["position", "token", "predicted", "share", "right", "probability", "rank"]
    return pl.DataFrame(rows, schema=columns, orient="row")
