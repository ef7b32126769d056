"""A `.gguf` file for transformers, and what it says of its model, held against what transformers reads of it.

Configuration, weights and tokenizer come from the file, every weight widened. Files beside it may belong to another
model, and transformers would take its tokenizer from them; so it is alone in a folder.

transformers passes over keys of the metadata, and over tensors that it has no name for, without a word. Here every key
of the architecture and of the tokenizer, and every tensor, is put into the configuration (if it is not there), known
to be harmless, or named in a refusal; and the loaded network must turn positions as the file says. Meanings are those
of llama.cpp. Other keys (`general.*`, of the tools that made the file) describe it: nothing that runs a model looks.
"""

import math
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import pre_tokenizers
from transformers import modeling_gguf_pytorch_utils

from mnemoscope.errors import ModelDamaged, ModelUnsupported

SUFFIX = ".gguf"
_ENTRIES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "vocab_size": "vocab_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size n_inner ffn_hidden_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads num_kv_heads",
    "attention.key_length": "global_head_dim head_dim",
    "attention.key_length_swa": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps norm_eps layer_norm_epsilon norm_epsilon",
    "attention.layer_norm_epsilon": "layer_norm_epsilon layer_norm_eps norm_epsilon norm_eps",
    "attention.sliding_window": "sliding_window",
    "attention.sliding_window_pattern": "layer_types",
    "attention.scale": "query_pre_attn_scalar",
    "attention.shared_kv_layers": "num_kv_shared_layers",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "embedding_length_per_layer_input": "hidden_size_per_layer_input",
    "use_parallel_residual": "use_parallel_residual",
    "expert_count": "num_local_experts num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size intermediate_size",
    "expert_weights_norm": "norm_topk_prob",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "expert_gating_func": "scoring_func",
    "expert_weights_scale": "routed_scaling_factor",
}
"""Keys of an architecture, and the entry of the configuration that means the same: the first that it has."""
_HARMLESS = re.compile(
    r"tensor_data_layout|pooling_type"  # the one order of rows that all files have; what embeddings are made of
    r"|context_length|embedding_length|feed_forward_length|vocab_size"  # without an entry: shapes, or no limit at all
    r"|nextn_predict_layers"  # layers for guessing ahead, which the next token does not need
    r"|ssm\..*|shortconv\.l_cache|full_attention_interval|rope\.dimension_sections"  # taken by the newer reader
    r"|rope\.(scaling\.(type|factor|original_context_length|(yarn_)?attn_factor|yarn_beta_(fast|slow)|finetuned)"
    r"|freq_base(_swa)?|dimension_count(_swa)?|scale_linear)"  # read below; `finetuned` tells how it was trained
)
_OF_TOKENIZER = re.compile(
    r"chat_templates?(\..*)?|huggingface\.json|ggml\.(model|pre|tokens|token_type(_count)?|scores|merges|\w+_token_ids?"
    r"|add_(bos|eos|sep)_token|add_space_prefix|precompiled_charsmap|suppress_tokens)"
)
"""Keys that are read, here or by transformers, and what templates and generation need."""
_AS_GPT2 = ("default", "gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4")
"""Ways to split a text that are GPT-2's, which transformers takes for every name that it does not know."""
_BY_DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
"""GPT-2's way after every digit is taken alone."""
_LARGEST_GEMMAS = {"gemma2": 46, "gemma3": 62}
"""Blocks of the 27B models, whose scores are scaled by hidden size and heads; as llama.cpp tells them."""
_FREQS, _LONG, _SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
_BASE = 10_000.0


@contextmanager
def lone_file(path: Path) -> Iterator[tuple[str, set[str]]]:
    """A temporary folder that holds only this file, and, once it is loaded, the names of its tensors that have a place
    (none: transformers' newer reader tells what it left).
    """
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelDamaged(f"{str(path)!r} is not a GGUF file: it does not begin with GGUF; take an undamaged copy")
    with tempfile.TemporaryDirectory(prefix="mnemoscope-") as folder, _watch_names() as places:
        (Path(folder) / path.name).symlink_to(path.resolve())
        yield folder, places


@contextmanager
def _watch_names() -> Iterator[set[str]]:
    """Suppresses transformers' bar for widening tensors, which has no switch; keeps its map of names, long to make."""
    library: Any = modeling_gguf_pytorch_utils
    places, usual, mapped = set[str](), library.tqdm, library.get_gguf_hf_weights_map

    def keep(*given: Any, **named: Any) -> Any:
        names = mapped(*given, **named)
        places.update(names)
        return names

    library.tqdm, library.get_gguf_hf_weights_map = lambda tensors, **_: tensors, keep
    try:
        yield places
    finally:
        library.tqdm, library.get_gguf_hf_weights_map = usual, mapped


@dataclass(frozen=True)
class GgufWords:
    """The metadata and the tensors' names of one file; `source` names it in errors, `places` are the tensors taken."""

    path: Path
    source: str
    stated: dict[str, Any]
    tensors: tuple[str, ...]
    places: set[str]

    @classmethod
    def of(cls, path: Path, source: str, places: set[str]) -> "GgufWords":
        from transformers.integrations.gguf.reader import read_gguf_metadata

        return cls(path, source, *read_gguf_metadata(str(path)), places)

    @property
    def kind(self) -> str:
        return str(self.stated["general.architecture"])

    @property
    def entries(self) -> dict[str, Any]:
        """The keys of the architecture without its name; of equal numbers for all layers (0: it has none) that one."""
        entries = {name.removeprefix(f"{self.kind}."): value for name, value in self.stated.items()}
        entries = {name: value for name, value in entries.items() if f"{self.kind}.{name}" in self.stated}
        lists = {name: value for name, value in entries.items() if isinstance(value, list) and "pattern" not in name}
        alike = {name: set(value) - {0} for name, value in lists.items()}
        return entries | {name: values.pop() for name, values in alike.items() if len(values) == 1}

    def take(self, config: Any) -> None:
        """Puts into the configuration what transformers passed over."""
        entries, fields = self.entries, config.to_dict().keys() | config.attribute_map.keys()
        self._require(self.stated.get("general.type", "model") == "model", "general.type")
        self._require(self.stated.get("split.count", 0) < 2, "split.count", "join its parts (llama-gguf-split --merge)")
        for name, value in entries.items():
            entry = next((each for each in _ENTRIES.get(name, "").split() if each in fields), None)
            if entry is None:
                self._require(_is_usual(name, value, config, entries), name)
                continue
            wanted = _in_words(name, value, config, entries)
            self._require(not isinstance(wanted, list) or entry == "layer_types", name)
            if not _same(getattr(config, entry), wanted):
                setattr(config, entry, wanted)
        if config.num_hidden_layers == _LARGEST_GEMMAS.get(self.kind) and "attention.scale" not in entries:
            config.query_pre_attn_scalar = config.hidden_size // config.num_attention_heads
        window, kinds = entries.get("attention.sliding_window") or math.inf, getattr(config, "layer_types", None)
        used = kinds is None or "sliding_attention" in kinds or window >= entries.get("context_length", 0)
        self._require(used, "attention.sliding_window")
        if rope := getattr(config, "rope_parameters", None):
            self._turn(config, rope, entries)
        else:
            for name in entries:
                self._require(not name.startswith("rope.") or not entries[name], name)

    def _turn(self, config: Any, rope: dict[str, Any], entries: dict[str, Any]) -> None:
        """Base, part of the head and scaling of the turns of queries and keys."""
        full, local = rope.get("full_attention", rope), rope.get("sliding_attention")
        full["rope_theta"] = entries.get("rope.freq_base", _BASE)
        if local is not None:
            local["rope_theta"] = entries.get("rope.freq_base_swa", local["rope_theta"])
        alone = entries.get("rope.freq_base_swa") in (None, full["rope_theta"])
        self._require(local is not None or alone, "rope.freq_base_swa")
        if (width := entries.get("rope.dimension_count")) and local is None:
            share = width / (getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
            if share != full.get("partial_rotary_factor", 1.0):
                full["partial_rotary_factor"] = share
        kind, factor = self._scaling(entries)
        context, factors = entries.get("context_length", 0), self._factors()
        self._require(kind in ("none", "linear", "longrope") or (kind == "yarn" and not factors), "rope.scaling.type")
        original = entries.get("rope.scaling.original_context_length", context)
        strength = entries.get("rope.scaling.attn_factor", 1.0) * entries.get("rope.scaling.yarn_attn_factor", 1.0)
        if kind == "yarn":
            full |= {
                "rope_type": "yarn",
                "factor": factor,
                "original_max_position_embeddings": original,
                "attention_factor": strength * (1 + 0.1 * math.log(max(factor, 1.0))),
                "beta_fast": entries.get("rope.scaling.yarn_beta_fast", 32.0),
                "beta_slow": entries.get("rope.scaling.yarn_beta_slow", 1.0),
            }
        elif factors and full.get("rope_type") != "proportional":
            short, long = ([number * factor for number in each] for each in factors)
            original = original if short != long else context
            full |= {
                "rope_type": "longrope",
                "short_factor": short,
                "long_factor": long,
                "attention_factor": strength,
                "original_max_position_embeddings": original,
            }
            if "original_max_position_embeddings" in config.to_dict():
                config.original_max_position_embeddings = original
        elif factor != 1:
            full |= {"rope_type": "linear", "factor": factor}

    def _scaling(self, entries: dict[str, Any]) -> tuple[str, float]:
        kind, factor = entries.get("rope.scaling.type", "linear"), entries.get("rope.scaling.factor")
        return kind, (factor or entries.get("rope.scale_linear") or 1.0) if kind in ("linear", "yarn") else 1.0

    def _factors(self) -> tuple[list[float], list[float]] | None:
        """What the frequencies are divided by, for short and for long texts, of the file's tensors."""
        short, long = (_FREQS, _FREQS) if _FREQS in self.tensors else (_SHORT, _LONG)
        if short not in self.tensors:
            return None
        from gguf import GGUFReader

        factors = {tensor.name: tensor.data for tensor in GGUFReader(self.path).tensors if tensor.name in (short, long)}
        return factors[short].tolist(), factors[long].tolist()

    def hold(self, network: Any) -> None:
        """Raises ModelUnsupported for a tensor that the network did not take, and for other turns than the file's."""
        entries, places = self.entries, {_FREQS, _LONG, _SHORT, *(self.places or self.tensors)}
        for name in self.tensors:
            block = re.match(r"blk\.([0-9]+)\.", name)
            ahead = block and entries.get("nextn_predict_layers") and int(block[1]) >= network.config.num_hidden_layers
            self._require(ahead or name in places or name.removesuffix(".weight") in places, f"the tensor {name}")
        tables = {name: turns for name, turns in network.named_buffers() if name.endswith("inv_freq")}
        turning = {name: turns for name, turns in tables.items() if "original" not in name}
        self._require(turning or not entries.get("rope.freq_base"), "rope.freq_base")
        (kind, factor), factors = self._scaling(entries), self._factors()
        for name, turns in turning.items():
            local = "sliding_attention" in name
            width = entries.get("rope.dimension_count_swa" if local else "rope.dimension_count", 2 * len(turns))
            base = entries.get("rope.freq_base", _BASE)
            if local:
                base = network.config.rope_parameters["sliding_attention"]["rope_theta"]
            wanted = float(base) ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
            if not local:
                wanted = wanted / factor / torch.tensor(factors[0] if factors else 1.0)
            alike = wanted.shape == turns.shape and torch.allclose(turns.double().cpu(), wanted, rtol=1e-3, atol=1e-12)
            self._require(alike or (kind == "yarn" and not local), f"rope.* otherwise than {name}")

    def split(self, tokenizer: Any) -> None:
        """Makes the tokenizer split text as the file says."""
        from transformers.integrations.gguf import gguf_tokenizer_mapping

        give = "name the tokenizer of the model that it was made from as --tokenizer"
        for name, value in self.stated.items():
            group, _, rest = name.partition(".")
            self._require(group != "tokenizer" or not value or _OF_TOKENIZER.fullmatch(rest), name, give)
        kind, way = self.stated.get("tokenizer.ggml.model"), self.stated.get("tokenizer.ggml.pre", "default")
        backend, spaced = tokenizer.backend_tokenizer, self.stated.get("tokenizer.ggml.add_space_prefix")
        if kind == "gpt2" and way in _BY_DIGITS:
            parts: list[Any] = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
            backend.pre_tokenizer = pre_tokenizers.Sequence(parts)
        elif kind == "gpt2":
            splits = vars(gguf_tokenizer_mapping).get("GGUF_PRE_TOKENIZER_SPLITS", ())  # since transformers 5.18
            self._require(way in _AS_GPT2 or way in splits, "tokenizer.ggml.pre", give)
        elif kind == "llama" and spaced is not None:
            begins = "".join(backend.encode("a", add_special_tokens=False).tokens).startswith("\u2581")
            self._require(begins == spaced, "tokenizer.ggml.add_space_prefix", give)

    def _require(self, right: Any, name: str, give: str = "") -> None:
        if not right:
            value = self.stated.get(name, self.stated.get(f"{self.kind}.{name}"))
            raise ModelUnsupported(
                f"model {self.source!r} states {name}{'' if value is None else f' = {str(value)[:60]!r}'}, which"
                f" transformers {transformers.__version__} does not read: its numbers would be another model's;"
                f" {give or 'give the model that it was made from, as a folder or a hub id'}"
            )


def _is_usual(name: str, value: Any, config: Any, entries: dict[str, Any]) -> bool:
    """Whether a key without an entry says what the network does anyway; zero and false turn something off."""
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    does = {
        "attention.causal": True,
        "attention.max_alibi_bias": 8.0,
        "rope.scaling.yarn_ext_factor": 1.0,
        "attention.head_count_kv": heads,
        "attention.key_length": width,
        "attention.scale": width**-0.5,
        "attention.value_length": entries.get("attention.key_length", width),
        "attention.value_length_swa": entries.get("attention.key_length_swa"),
    }
    return not value or _HARMLESS.fullmatch(name) is not None or _same(does.get(name), value)


def _in_words(name: str, value: Any, config: Any, entries: dict[str, Any]) -> Any:
    """The value as the configuration writes it."""
    if name == "attention.sliding_window_pattern":
        layers = range(config.num_hidden_layers)
        local = value if isinstance(value, list) else [layer % value < value - 1 for layer in layers]
        return ["sliding_attention" if each else "full_attention" for each in local]
    if name == "block_count":
        return value - entries.get("nextn_predict_layers", 0)
    gates = {1: "softmax", 2: "sigmoid"}
    return round(value**-2) if name == "attention.scale" else gates.get(value) if name.endswith("func") else value


def _same(one: Any, other: Any) -> bool:
    numbers = isinstance(one, int | float) and isinstance(other, int | float)
    return math.isclose(one, other, rel_tol=1e-6) if numbers else bool(one == other)
