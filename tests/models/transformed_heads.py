"""Tiny random decoders with a transform before the head's matrix: BERT's family as decoders, and ModernBERT's."""

from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM

from models.expert_models import fill_randomly

ROWS, HIDDEN, MEMORIES, CONTEXT = 280, 16, 24, 64
_SIZES: dict[str, Any] = {"hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 2}
_SIZES |= {"intermediate_size": MEMORIES, "vocab_size": ROWS, "type_vocab_size": 2, "is_decoder": True}
_SIZES |= {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "max_position_embeddings": CONTEXT}
_FROM_BEHIND_PADDING = {"max_position_embeddings": CONTEXT + 2}
"""Positions that begin behind the padding token's number, 1."""
_ROC = dict.fromkeys(("pronunciation_vocab_size", "shape_vocab_size"), 10)
_ROC |= dict.fromkeys(("pronunciation_embed_dim", "shape_embed_dim"), 4)
TRANSFORMED: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": _FROM_BEHIND_PADDING,
    "modernbert-decoder": {},
    "electra": {"embedding_size": 8},
    "rembert": {"input_embedding_size": 8, "output_embedding_size": 12},
    "big_bird": {"attention_type": "original_full"},
    "camembert": _FROM_BEHIND_PADDING,
    "data2vec-text": _FROM_BEHIND_PADDING,
    "ernie": {},
    "megatron-bert": {},
    "roberta-prelayernorm": _FROM_BEHIND_PADDING,
    "roc_bert": _ROC | dict.fromkeys(("enable_pronunciation", "enable_shape"), False),
    "roformer": {"embedding_size": 8},
    "xlm-roberta": _FROM_BEHIND_PADDING,
    "xlm-roberta-xl": _FROM_BEHIND_PADDING,
}
"""What is particular to each model type."""


def build_transformed(kind: str, **changes: Any) -> Any:
    """The tiny random model of an entry of TRANSFORMED."""
    settings = _SIZES | TRANSFORMED[kind] | changes
    return fill_randomly(lambda: AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **settings)))
