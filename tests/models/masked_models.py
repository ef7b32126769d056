"""Tiny random models that read sentences whole and predict masked words, and a slow reading of them: the transformers
model itself, in float64, with plain hooks. Shares no code with the package.
"""

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedTokenizerFast

from mnemoscope.models import LanguageModel, load_model
from models.expert_models import fill_randomly

SPECIAL = ("<pad>", "<s>", "</s>", "<mask>", "<unk>")
MASK = 3
ROWS = 60
KINDS = ("bert", "modernbert", "deberta-v2", "roberta", "electra", "distilbert")
_SIZES: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "vocab_size": ROWS}
_SIZES |= {"intermediate_size": 24, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_SIZES |= {"max_position_embeddings": 40, "type_vocab_size": 2, "cls_token_id": 1, "sep_token_id": 2}
_MORE: dict[str, dict[str, Any]] = {
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0},
    "electra": {"embedding_size": 8},
    "distilbert": {"dim": 16, "hidden_dim": 24, "n_layers": 3, "n_heads": 2},
}
_BLOCK = re.compile(r".*\.layers?\.[0-9]+")
_RESIDUAL = {"modernbert": "mlp_norm", "distilbert": "sa_layer_norm"}
_DOWN = {"modernbert": "mlp.Wo", "distilbert": "ffn.lin2"}
Change = Callable[[Tensor], None]


def masked_tokenizer(rows: int = ROWS) -> Any:
    """Words w5, w6 ... in the frame `<s> ... </s>`."""
    words = [*SPECIAL, *(f"w{number}" for number in range(len(SPECIAL), rows))]
    plain = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    plain.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    names = ("pad_token", "bos_token", "eos_token", "mask_token", "unk_token")
    return PreTrainedTokenizerFast(tokenizer_object=plain, **dict(zip(names, SPECIAL, strict=True)))


def build_masked(kind: str, **changes: Any) -> Any:
    settings = _SIZES | _MORE.get(kind, {}) | changes
    return fill_randomly(lambda: AutoModelForMaskedLM.from_config(AutoConfig.for_model(kind, **settings)))


def load_masked(network: Any) -> LanguageModel:
    return load_model(network, tokenizer=masked_tokenizer())


@dataclass(frozen=True)
class SlowBlock:
    """What one block holds, `[column, ...]`."""

    residual: Tensor
    coefficients: Tensor
    update: Tensor
    output: Tensor


class SlowMasked:
    def __init__(self, network: Any) -> None:
        self.network = copy.deepcopy(network).double()
        kind = network.config.model_type
        named = dict(self.network.named_modules())
        paths = [path for path in named if _BLOCK.fullmatch(path)]
        self._blocks = [named[path] for path in paths]
        self._residuals = [named[f"{path}.{_RESIDUAL.get(kind, 'attention')}"] for path in paths]
        self._enters = kind == "modernbert"
        self.downs = [named[f"{path}.{_DOWN.get(kind, 'output.dense')}"] for path in paths]

    def values(self, layer: int) -> Tensor:
        return self.downs[layer].weight.detach().T

    def read(
        self, tokens: Sequence[int], changes: Mapping[int, Change] = {}, *, framed: bool = True
    ) -> tuple[list[SlowBlock], Tensor]:
        """Every block, and the scores `[column, vocab]`; `changes` change a layer's coefficients `[column, memory]` in
        place.
        """
        kept: list[dict[str, Tensor]] = [{} for _ in self._blocks]

        def keep(number: int, name: str) -> Any:
            def hook(_: Any, inputs: Any, output: Any) -> None:
                kept[number][name] = (output[0] if isinstance(output, tuple) else output)[0]

            return hook

        def enter(number: int, name: str) -> Any:
            def hook(_: Any, inputs: Any) -> Any:
                entered = inputs[0].clone()
                if name == "coefficients" and number in changes:
                    changes[number](entered[0])
                kept[number][name] = entered[0]
                return (entered, *inputs[1:])

            return hook

        ids = torch.tensor([[1, *tokens, 2] if framed else [*tokens]])
        with ExitStack() as hooks:
            for number, (block, residual, down) in enumerate(
                zip(self._blocks, self._residuals, self.downs, strict=True)
            ):
                added = [block.register_forward_hook(keep(number, "output"))]
                added.append(down.register_forward_pre_hook(enter(number, "coefficients")))
                added.append(down.register_forward_hook(keep(number, "update")))
                entering = residual.register_forward_pre_hook(enter(number, "residual")) if self._enters else None
                added.append(entering or residual.register_forward_hook(keep(number, "residual")))
                for one in added:
                    hooks.callback(one.remove)
            logits = self.network(ids).logits[0]
        return [SlowBlock(**one) for one in kept], logits

    def lens(self, streams: Tensor) -> Tensor:
        """The model's own readout of streams: its head, run on them in place of the last block's output."""

        def replaced(_: Any, inputs: Any, output: Any) -> Any:
            rows = streams[None]
            return (rows, *output[1:]) if isinstance(output, tuple) else rows

        hook = self._blocks[-1].register_forward_hook(replaced)
        try:
            with torch.no_grad():
                return self.network(torch.tensor([[5] * len(streams)])).logits[0]
        finally:
            hook.remove()


def masked_pair(kind: str) -> tuple[LanguageModel, SlowMasked]:
    """A model as the package reads it, and its slow reading."""
    network = build_masked(kind)
    return load_masked(network), SlowMasked(network)
