"""Every token of a prompt masked in turn: what a model that reads sentences whole says in its place."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mnemoscope.errors import ModelUnsupported, PromptError
from mnemoscope.foundation.formatting import Table
from mnemoscope.foundation.origin import Result, made_by
from mnemoscope.models import LanguageModel
from mnemoscope.models.object_state import whole_use
from mnemoscope.tracing.predictions import ids_of, last_streams, read_predictions
from mnemoscope.tracing.records import Prediction, Record, Token, plain
from mnemoscope.tracing.rendering import cells_at, prediction_text
from mnemoscope.tracing.scoring.ranking import rank_of
from mnemoscope.tracing.scoring.scores import opens


@dataclass(frozen=True, slots=True)
class MaskedToken(Record):
    """A token, and what the model says where it is masked, best first: whether that is `right`, and the token's own
    `rank` and `probability`.
    """

    position: int
    token: Token
    prediction: tuple[Prediction, ...]
    right: bool
    rank: int
    probability: float


@dataclass(frozen=True, repr=False)
class MaskedTokens(Result):
    """The tokens of a prompt, each masked alone. Prints as a table."""

    model: str
    fingerprint: str
    prompt: str
    positions: tuple[MaskedToken, ...]
    made_by: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return {name: plain(value) for name, value in vars(self).items()}

    def __repr__(self) -> str:
        return f"<MaskedTokens of {self.model}: {len(self.positions)} tokens; print it to read it>"

    def __str__(self) -> str:
        rows = [
            [
                *cells_at(one.position, one.token.text, None),
                prediction_text(one.prediction[0], width=24),
                "yes" if one.right else "no",
                f"{one.probability:.3f}",
                str(one.rank),
            ]
            for one in self.positions
        ]
        right = sum(one.right for one in self.positions)
        columns = (">position", "token", "predicted there", "right", ">probability", ">rank")
        table = Table(columns, rows, (8, 20, 24, 5, 11, 6)).lines()
        return "\n".join([f"{self.model}: right about {right} of {len(rows)} tokens, each masked alone", "", *table])


@opens
@whole_use
def mask_each(model: LanguageModel, prompt: str, *, top: int = 10) -> MaskedTokens:
    """What a masked model says at each token of the prompt, which is masked for it while all others are seen; one
    forward each, in which changes of a surrounding `intervene` act.

    Raises ModelUnsupported for another model, PromptError, NotFinite.

    Args:
        model: A LanguageModel, or a name that `load_model` takes.
        prompt: Plain text without a mask, read as mining reads a sentence.
        top: Predictions of each token.
    """
    if model.reading.mask is None:
        raise ModelUnsupported(f"{model.spec} has no mask token, so none of the prompt can be masked; leave --mask out")
    prompt, texts, rows = model.prompt_text(prompt), model.vocabulary()[0], []
    tokens = model.prompt_tokens(prompt)
    if model.reading.mask in tokens:
        raise PromptError("the prompt holds a mask, where each of its tokens is masked in turn; leave the mask out")
    for position, token in enumerate(tokens):
        masked = [*tokens[:position], model.reading.mask, *tokens[position + 1 :]]
        with model.lock, torch.inference_mode():
            scores = model.scores(last_streams(model, ids_of(model, masked)), projection="lens")
            rank, share = int(rank_of(scores, torch.tensor([token], device=scores.device))), scores.softmax(1)
            probability = float(share[0, token])
        best = next(read_predictions(scores, top, texts, changed=False))
        rows.append(MaskedToken(position, Token(token, texts[token]), best, rank == 0, rank, probability))
    origin = made_by(model=model.fingerprint, atlas=None, options={"prompt": prompt, "top": top}, seed=None)
    return MaskedTokens(model.spec, model.fingerprint, prompt, tuple(rows), origin)
