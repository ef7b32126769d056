"""Tiny random encoder-decoders, and how each reads a pair when it is looked at from outside: one pair, one forward."""

from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

WORDS, HIDDEN, MEMORIES = 40, 16, 24
_SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
_BART: dict[str, Any] = {
    **{"vocab_size": WORDS, "d_model": HIDDEN, "encoder_layers": 1, "decoder_layers": 2, "max_position_embeddings": 32},
    **{"encoder_ffn_dim": MEMORIES, "decoder_ffn_dim": MEMORIES},
    **{"encoder_attention_heads": 2, "decoder_attention_heads": 2},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2},
    **{"forced_eos_token_id": None},
}
_T5: dict[str, Any] = {
    **{"vocab_size": WORDS, "d_model": HIDDEN, "d_kv": 8, "d_ff": MEMORIES, "num_layers": 1, "num_decoder_layers": 2},
    **{"num_heads": 2, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 2, "n_positions": 32},
}


class PairKind(NamedTuple):
    """`down` is the decoder's down-projection within a block, `start` what its own code puts before a target."""

    model: Any
    config: Any
    settings: dict[str, Any]
    blocks: str
    down: str
    start: list[int]


PAIR_MODELS = {
    "t5": PairKind(T5ForConditionalGeneration, T5Config, _T5, "decoder.block", "layer.2.DenseReluDense.wo", [0]),
    "gated t5": PairKind(
        T5ForConditionalGeneration,
        T5Config,
        _T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        "decoder.block",
        "layer.2.DenseReluDense.wo",
        [0],
    ),
    "bart": PairKind(BartForConditionalGeneration, BartConfig, _BART, "model.decoder.layers", "fc2", [2, 1]),
    "marian": PairKind(
        MarianMTModel, MarianConfig, _BART | {"decoder_start_token_id": 0}, "model.decoder.layers", "fc2", [0, 1]
    ),
    "m2m_100": PairKind(M2M100ForConditionalGeneration, M2M100Config, _BART, "model.decoder.layers", "fc2", [2, 1]),
}


def build_pair_model(kind: str, **changes: Any) -> Any:
    made = PAIR_MODELS[kind]
    torch.manual_seed(0)
    model = made.model(made.config(**(made.settings | changes))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape)
                parameter.copy_(noise * 0.3) if parameter.dim() > 1 else parameter.add_(noise * 0.1)
        for name, buffer in model.named_buffers():
            if name == "final_logits_bias":
                buffer.copy_(0.3 * torch.randn(buffer.shape))
    return model


def pair_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """Words w4, w5 and on; an end behind sources and targets and, but in T5's, a beginning before them."""
    names = {word: number for number, word in enumerate(_SPECIAL + [f"w{number}" for number in range(4, WORDS)])}
    plain = Tokenizer(models.WordLevel(names, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    shape = "$A </s>" if "t5" in kind else "<s> $A </s>"
    plain.post_processor = processors.TemplateProcessing(single=shape, special_tokens=[("<s>", 1), ("</s>", 2)])
    special = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), _SPECIAL, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=plain, **special)


class SlowPairs:
    """Reads a pair of own tokens by one forward of the model itself."""

    def __init__(self, kind: str, model: Any) -> None:
        self.kind, self.model, self.made = kind, model, PAIR_MODELS[kind]
        self.framed = [] if "t5" in kind else [1]
        self.downs = [each.get_submodule(self.made.down) for each in model.get_submodule(self.made.blocks)]

    @torch.no_grad()
    def read(self, source: list[int], target: list[int]) -> tuple[list[Tensor], Tensor]:
        """The coefficients `[position, memory]` of every layer and the logits `[position, token]` at own tokens."""
        seen: list[Tensor] = []
        hooks = [
            each.register_forward_pre_hook(lambda _, given: seen.append(given[0].reshape(-1, given[0].shape[-1])))
            for each in self.downs
        ]
        start = self.made.start
        try:
            made = self.model(
                input_ids=torch.tensor([[*self.framed, *source, 2]]),
                decoder_input_ids=torch.tensor([[*start, *target]]),
                use_cache=False,
            )
        finally:
            for hook in hooks:
                hook.remove()
        return [each[len(start) :] for each in seen], made.logits[0, len(start) :]
