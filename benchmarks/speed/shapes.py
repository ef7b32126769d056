"""Random models of known shapes on random text: the cost of mining on any device, without reading a disk.

Weights and tokens are random, so the results mean nothing; the work is that of a trained model of the shape. Also
measures the device's rate of matrix products and, unless the device is the CPU, whether a small model of the family has
the same triggers on both.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from mnemoscope.kernels.devices import device_name
from mnemoscope.mining.text.batches import Batch
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.models.forward.batches import default_batch_tokens, pack, pad, send, sides
from mnemoscope.models.opening.huggingface import builtin_folder
from mnemoscope.runs.plan import SAMPLED_EVERY, SAMPLED_TOKENS, batch_order

from .loops import Rates, Stopwatch, compare_loops, mine_batches, overlap

SHAPES = ("gpt2-small", "bert-base", "8b", "experts")
"""GPT-2 small, BERT base, Llama 3 of 8 billion parameters, and a small mixture of eight experts like Mixtral."""
USUAL_DTYPE = dict.fromkeys(SHAPES, "float32") | {"8b": "bfloat16"}
_NETWORKS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "gpt2-small": (GPT2LMHeadModel, GPT2Config, {}),
    "bert-base": (BertForMaskedLM, BertConfig, {}),
    "8b": (
        LlamaForCausalLM,
        LlamaConfig,
        {
            "vocab_size": 128_256,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 8192,
            "rope_theta": 500_000.0,
        },
    ),
    "experts": (
        MixtralForCausalLM,
        MixtralConfig,
        {
            "vocab_size": 8192,
            "hidden_size": 512,
            "intermediate_size": 1024,
            "num_hidden_layers": 4,
            "num_attention_heads": 8,
            "num_key_value_heads": 8,
            "max_position_embeddings": 512,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
    ),
}
"""Classes of network and configuration, and its entries: Llama's as published by Meta."""
_UNCHANGED: Mapping[str, int] = {}
_MEAN_LENGTH, _LONGEST = 25, 200
"""Tokens of a random sentence."""
_COMPARED = 4


def random_model(
    shape: str, *, dtype: str | None = None, device: str | torch.device = "cpu", sizes: Mapping[str, int] = _UNCHANGED
) -> LanguageModel:
    """A model of a shape with random weights and the built-in model's tokenizer; `sizes` replace entries of its
    configuration. `dtype` None is the shape's usual one.
    """
    kind: torch.dtype = getattr(torch, dtype or USUAL_DTYPE[shape])
    torch.manual_seed(0)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(kind)
    try:
        with torch.device(device):
            kind_of_network, kind_of_config, own = _NETWORKS[shape]
            network: Any = kind_of_network(kind_of_config(**{**own, **sizes}))
    finally:
        torch.set_default_dtype(usual)
    return load_model(network.eval(), tokenizer=_tokenizer())


def _tokenizer() -> Any:
    tokenizer = AutoTokenizer.from_pretrained(str(builtin_folder("pydocs")))
    tokenizer.add_special_tokens({"mask_token": "[MASK]"})
    return tokenizer


class RandomText:
    """Batches of random tokens with the lengths of sentences, in the order of a plan."""

    def __init__(self, model: LanguageModel, *, tokens: int, batch_tokens: int, seed: int = 0) -> None:
        self._model, self._generator = model, np.random.default_rng(seed)
        lengths = self._generator.geometric(1 / _MEAN_LENGTH, size=1 + 2 * tokens // _MEAN_LENGTH) + 1
        lengths = lengths.clip(max=min(_LONGEST, model.longest))
        lengths = np.sort(lengths[: 1 + int(np.searchsorted(lengths.cumsum(), tokens))])
        self._lengths = lengths.astype(np.int64)
        columns = model.reading.columns(self._lengths)
        self._cuts = pack(columns, area=batch_tokens, rows=batch_tokens, apart=sides(model, columns))
        self.count = len(self._cuts)
        self._order = batch_order(self.count, seed)
        self._always = int(np.searchsorted(np.cumsum([self._own(k).sum() for k in range(self.count)]), SAMPLED_TOKENS))

    def _own(self, number: int) -> NDArray[np.int64]:
        return self._lengths[self._cuts[int(self._order[number])]]

    def tokens(self, numbers: Iterable[int]) -> int:
        return sum(int(self._own(number).sum()) for number in numbers)

    def __call__(self, number: int) -> Batch:
        """Batch `number` on the model's device; rows ascend in length."""
        lengths, cut, device = self._own(number), self._cuts[int(self._order[number])], self._model.device
        rows = [self._sentence(length) for length in lengths.tolist()]
        ids = send(np.arange(cut.start, cut.stop), device)
        sampled = number <= self._always or number % SAMPLED_EVERY == 0
        return Batch(pad(rows, self._model), lengths, ids, sampled=sampled)

    def in_text_order(self) -> Iterator[list[int]]:
        while True:
            for length in self._generator.permutation(self._lengths).tolist():
                yield self._sentence(length).tolist()

    def _sentence(self, length: int) -> NDArray[np.int64]:
        return self._generator.integers(self._model.sizes.vocabulary, size=length)


def measure_shape(
    shape: str,
    *,
    device: torch.device,
    dtype: str | None = None,
    rounds: int,
    warm: int,
    batch_tokens: int | None = None,
    sizes: Mapping[str, int] = _UNCHANGED,
) -> dict[str, Any]:
    """All figures of a random model of a shape on a device; `sizes` replace entries of its configuration."""
    model = random_model(shape, dtype=dtype, device=device, sizes=sizes)
    area = batch_tokens or default_batch_tokens(model)
    text = RandomText(model, tokens=warm + 5 * rounds * area, batch_tokens=area)
    rates = compare_loops(model, text, text.in_text_order(), rounds=rounds, warm=warm)
    ceiling = product_rate(device, model.dtype)
    same = None if device.type == "cpu" else same_as_on_the_host(shape, device)
    return {
        "model": shape,
        "device": device_name(device) if device.type == "cuda" else str(device),
        "dtype": str(model.dtype).removeprefix("torch."),
        "layers": model.sizes.layers,
        "parameters": model.sizes.parameters,
        "batch_tokens": area,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        **rates.document(),
        "teraflops": {"matrix product": ceiling / 1e12, **work_rates(model, rates)},
        "same_as_on_the_host": same,
    }


def work_rates(model: LanguageModel, rates: Rates) -> dict[str, float]:
    """Teraflops of the blocks' matrix products, two per weight and token, in the forward pass and in mining. A
    mixture's stacks (a third axis) count the experts of each token.
    """
    weights = 0.0
    for number, layer in enumerate(model.anatomy.layers):
        used = model.anatomy.memories_at_once(number) / model.sizes.memories[number]
        weights += sum(p.numel() * (used if p.dim() == 3 else 1.0) for p in layer.block.parameters() if p.dim() > 1)
    last = model.sizes.layers - 1
    dense = model.numbering(last).routed is None
    whole = 2.0 * weights
    stopped = whole - (2.0 * model.values(last).numel() if dense else 0.0)
    work = {"bare forward": whole, "mining": stopped}
    return {name: each * rates.per_second[name] / 1e12 for name, each in work.items()}


def product_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of one large product of random square matrices."""
    size, times = (8192, 20) if device.type == "cuda" else (512, 20)
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    for _ in range(3):
        torch.mm(a, b, out=out)
    with Stopwatch(device) as watch:
        for _ in range(times):
            torch.mm(a, b, out=out)
    return 2.0 * size**3 * times / watch.seconds


def same_as_on_the_host(shape: str, device: torch.device) -> dict[str, float]:
    """Compares the triggers of a small float32 model on a device and on the host: `shared_triggers` is the mean share
    of equal triggers, `coefficient_difference` the largest difference of the best magnitudes at the same rank, over
    max(1, magnitude).
    """
    if shape == "bert-base":
        sizes = {"num_hidden_layers": 2, "hidden_size": 96, "num_attention_heads": 4}
    elif shape == "gpt2-small":
        sizes = {"n_layer": 2, "n_embd": 96, "n_head": 4}
    else:
        sizes = {
            "num_hidden_layers": 2,
            "hidden_size": 128,
            "intermediate_size": 448,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 4096,
        }
    host = random_model(shape, dtype="float32", sizes=sizes)
    states = []
    for model in (host, load_model(host.anatomy.model, tokenizer=_tokenizer(), device=device)):
        text = RandomText(model, tokens=4 * _COMPARED * 2048, batch_tokens=2048)
        states.append(mine_batches(model, [text(number) for number in range(_COMPARED)])[0])
    differences = []
    for key, triggers in states[0].triggers.items():  # the whole state, including unmerged triggers
        own, other = (one.state()["magnitude"].cpu() for one in (triggers, states[1].triggers[key]))
        differences.append(float(((own - other).abs() / own.clamp(min=1)).max()))
    return {"shared_triggers": overlap(*states), "coefficient_difference": max(differences)}
