"""A prompt continued token by token, with or without changed memories.

Every step runs the whole text again, so that a change holds at exactly the positions that it names; between steps no
hook is left, whatever the reader of the steps does.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mnemoscope.errors import OptionError
from mnemoscope.models import Block, LanguageModel, read_blocks
from mnemoscope.tracing.interventions import Interventions, check, intervene, interventions_of
from mnemoscope.tracing.prompts import Guess, Token, ids_of, prompt_tokens
from mnemoscope.tracing.reading import guesses


@dataclass(frozen=True, slots=True)
class Step:
    """One token written: its position, its probability (at temperature 1), and what else was likely, best first.

    `end` says that nothing comes after it: it is one of the model's end-of-text tokens or its beginning token, or the
    context is full.
    """

    position: int
    token: Token
    probability: float
    likely: tuple[Guess, ...]
    end: bool

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "position": self.position,
            "token": self.token.to_dict(),
            "probability": self.probability,
            "likely": [guess.to_dict() for guess in self.likely],
            "end": self.end,
        }


def generate(
    model: LanguageModel,
    prompt: str,
    *,
    tokens: int,
    interventions: Interventions = None,
    temperature: float = 0.0,
    seed: int = 0,
    likely: int = 5,
) -> Iterator[Step]:
    """At most `tokens` steps that continue the prompt, each computed when it is asked for.

    Temperature 0 takes the best token (of equal ones the lower id), above 0 draws by `seed`. Ends early with one of
    the model's end-of-text tokens, its beginning token, or a full context. An intervention at `last` changes the last
    position of each step alone. Raises PromptError, InterventionError or OptionError at once.
    """
    if tokens < 0 or temperature < 0 or likely < 1:
        raise OptionError(
            f"tokens={tokens}, temperature={temperature}, likely={likely} cannot be met; "
            "tokens and temperature must be 0 or more, likely 1 or more"
        )
    own = prompt_tokens(model, prompt)
    changes = interventions_of(interventions)
    check(model, changes)

    def steps() -> Iterator[Step]:
        words, texts = list(own), model.vocabulary()[0]
        chance = torch.Generator().manual_seed(seed)
        for _ in range(min(tokens, model.longest - len(own))):
            with model.lock, torch.inference_mode(), intervene(model, changes):
                stream = last_streams(model, ids_of(model, words))
                best = next(guesses(model, stream, likely, changed=bool(changes)))
                chosen, probability = best[0].token.id, best[0].probability
                if temperature > 0:
                    scores = model.scores(stream, projection="lens")[0].double().cpu()
                    chosen = int(torch.multinomial((scores / temperature).softmax(0), 1, generator=chance))
                    probability = float(scores.softmax(0)[chosen])
            words.append(chosen)
            end = chosen in model.ends or len(words) == model.longest
            yield Step(len(words) - 1, Token(chosen, texts[chosen]), probability, best, end)
            if end:
                return

    return steps()


def last_streams(model: LanguageModel, ids: Tensor) -> Tensor:
    """The last layer's output `[batch, hidden]` at the last position of `ids [batch, position]`."""
    found: list[Tensor] = []

    def keep(_: int, block: Block) -> None:
        found.append(block.layer_output[:, -1].clone())

    with read_blocks(model, keep, layers=[model.sizes.layers - 1]):
        model.backbone(ids)
    return found[0]


def continuation(model: LanguageModel, steps: tuple[Step, ...]) -> str:
    """The text of the tokens that the steps wrote; what is not whole UTF-8 shows as a replacement mark."""
    raw = model.vocabulary()[1]
    return b"".join(raw[step.token.id] for step in steps).decode("utf-8", "replace")
