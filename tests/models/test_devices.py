"""A model spread over CPU and disk is the one that is not, bit for bit; what cannot be spread is told in one line."""

import gc
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import accelerate
import peft
import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from mnemoscope.errors import ModelDamaged, ModelError, ModelUnsupported, OptionError
from mnemoscope.foundation.options.model_options import parse_max_memory, write_max_memory
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.models.modules.offloading import hold_weights, is_spread
from mnemoscope.models.modules.spreading import Room
from mnemoscope.tracing import trace
from models.conftest import CASES, build, refused
from models.expert_models import build_mixture

# Tied and untied heads, Conv1D, norms on both sides, experts whose stacks transformers makes as it loads; branches with
# norms of their own; experts in a narrower stream.
FAMILIES = ("llama", "gpt2", "gemma2", "mixtral", "gemma4", "nemotron_h latent")
IDS = torch.arange(24).view(3, 8)
PARTLY = 0.9
"""Share of the weights that fit, so that some lie in memory and some on disk."""


def network_of(name: str) -> Any:
    if name in ("gpt2", "nemotron_h latent"):  # which have two blocks, whatever is said
        return (build if name in CASES else build_mixture)(name)
    return (build if name in CASES else build_mixture)(name, num_hidden_layers=4)


def bytes_of(network: Any) -> int:
    return sum(weight.numel() * 4 for weight in network.parameters())


@pytest.fixture
def stored(tmp_path: Path, tokenizer: Any) -> Any:
    """Saves the tiny model of a family; gives its folder and the bytes of its weights in float32."""

    def save(name: str, *, dtype: torch.dtype = torch.float32, **how: Any) -> tuple[str, int]:
        network, folder = network_of(name), tmp_path / name
        size = bytes_of(network)
        network.to(dtype).save_pretrained(folder, **how)
        tokenizer.save_pretrained(folder)
        return str(folder), size

    return save


def assert_same(spread: LanguageModel, plain: LanguageModel) -> None:
    assert (spread.content, spread.fingerprint) == (plain.content, plain.fingerprint)
    assert (spread.sizes, spread.proof, spread.dtype) == (plain.sizes, plain.proof, plain.dtype)
    assert torch.equal(spread.logits(IDS), plain.logits(IDS))
    assert torch.equal(spread.head(), plain.head())
    for layer in range(plain.sizes.layers):
        values, keys, up = plain.values(layer), plain.keys(layer), plain.up_keys(layer)
        assert torch.equal(spread.values(layer), values)
        assert torch.equal(spread.keys(layer), keys)
        assert up is None or torch.equal(spread.up_keys(layer), up)
        for projection in ("raw", "gain", "lens"):
            scores = (model.scores(values, projection=projection, layer=layer) for model in (spread, plain))
            assert torch.equal(*scores)


@pytest.mark.fast(1, full=6)
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("share", "places"), [(PARTLY, ("cpu", "disk")), (0.0, ("disk",))])
def test_a_spread_model_is_the_same_model(stored: Any, name: str, share: float, places: tuple[str, ...]) -> None:
    folder, size = stored(name)
    plain, spread = load_model(folder), load_model(folder, max_memory=f"{int(share * size)}B")
    assert (plain.lies_on, spread.lies_on) == (("cpu",), places)
    assert is_spread(spread.anatomy.model)
    assert_same(spread, plain)
    last = f"L{plain.sizes.layers - 1}"
    changed = f"{last}.E1.M3=0" if plain.numberings else f"{last}.M3=0"
    for changes in (None, [changed, changed.replace("=0", "*2@last")]):
        traces = (trace(model, "the cat sat", interventions=changes).to_dict() for model in (spread, plain))
        assert next(traces) == next(traces)


def test_a_model_that_fits_is_not_spread_and_weights_are_widened_as_they_are_fetched(stored: Any) -> None:
    folder, size = stored("llama", dtype=torch.bfloat16, max_shard_size="6KB")
    assert len(list(Path(folder).glob("*.safetensors"))) > 2
    plain = load_model(folder)
    for enough in ("1GiB", f"{size + 4096}B", {"cpu": size + 4096}, None):
        assert not is_spread(load_model(folder, max_memory=enough).anatomy.model)
    assert is_spread(load_model(folder, device="cpu", max_memory={"cpu": size // 2}).anatomy.model)
    assert_same(load_model(folder, max_memory=f"{size // 2 + 4096}B"), plain)
    # Half of what float32 takes holds bfloat16 whole.
    half = load_model(folder, dtype="bfloat16", max_memory=f"{size // 2 + 4096}B")
    assert not is_spread(half.anatomy.model)
    assert_same(load_model(folder, dtype="bfloat16", max_memory="0B"), half)
    spread = load_model(folder, max_memory="0B")
    shutil.rmtree(folder)
    with pytest.raises(ModelDamaged, match="the weight 'weight' of a Linear cannot be read from where it was put"):
        spread.values(0)


def test_auto_spreads_what_free_memory_does_not_hold(stored: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, size = stored("llama")
    plain = load_model(folder)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=size // 2))
    spread = load_model(folder)
    assert is_spread(spread.anatomy.model)
    assert_same(spread, plain)
    # So a run that was begun with auto goes on: its plan holds the kind.
    assert is_spread(load_model(folder, device="cpu").anatomy.model)


def away(model: LanguageModel) -> list[bool]:
    return [weight.is_meta for weight in model.anatomy.model.parameters()]


def test_weights_come_for_as_long_as_they_are_needed_and_stay_tied(stored: Any) -> None:
    spread = load_model(stored("gpt2")[0], max_memory="0B")
    network = spread.anatomy.model
    assert all(away(spread))
    assert network.lm_head.weight is network.transformer.wte.weight
    with hold_weights(network.lm_head):
        assert network.lm_head.weight.shape == (280, 16)
        assert not network.lm_head.weight.is_meta
        assert network.transformer.wte.weight.is_meta
        spread.logits(IDS)
        assert not network.lm_head.weight.is_meta, "somebody still holds it"
    assert network.lm_head.weight is network.transformer.wte.weight

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    with network.transformer.h[1].mlp.act.register_forward_pre_hook(fail), pytest.raises(ZeroDivisionError):
        spread.logits(IDS)
    assert all(away(spread))


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_threads_share_what_is_fetched(stored: Any, name: str) -> None:
    folder, _ = stored(name)
    plain, spread = load_model(folder), load_model(folder, max_memory="0B")
    inputs = [(IDS + 7 * number) % 280 for number in range(12)]
    wanted = [plain.logits(ids) for ids in inputs]
    with ThreadPoolExecutor(4) as pool:
        assert all(map(torch.equal, pool.map(spread.logits, inputs), wanted))
    assert all(away(spread))


def test_the_temporary_folder_goes_with_the_model(stored: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = stored("mixtral")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    spread = load_model(folder, max_memory="0B")
    assert sorted(scratch.rglob("*.safetensors")), "stacks of experts are not in the model's own files"
    del spread
    gc.collect()
    assert not list(scratch.iterdir())
    monkeypatch.setattr("mnemoscope.models.modules.spreading.share_modules", lambda _: 1 / 0)
    with pytest.raises(ModelDamaged):
        load_model(folder, max_memory="0B")
    assert not list(scratch.iterdir())


def test_a_weight_that_is_not_finite_is_named(tmp_path: Path, tokenizer: Any) -> None:
    network = build("llama")
    network.model.layers[1].mlp.down_proj.weight[2, 3] = torch.nan
    network.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert "layers.1.mlp.down_proj.weight' holds 1 NaN" in refused(ModelDamaged, tmp_path, max_memory="0B")


# A user's own object.


def spread_over(network: Any, place: str, folder: Path) -> Any:
    children = {name: place for name, _ in network.named_children()}
    return accelerate.dispatch_model(network, children, offload_dir=str(folder))


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", FAMILIES[:4])
def test_a_model_that_the_user_has_spread(name: str, tmp_path: Path, tokenizer: Any) -> None:
    plain = load_model(network_of(name), tokenizer=tokenizer)
    network = spread_over(network_of(name), "disk", tmp_path)
    spread = load_model(network, tokenizer=tokenizer)
    assert spread.lies_on == ("disk",)
    assert_same(spread, plain)
    network(IDS)  # accelerate unties what it fetches
    assert_same(load_model(network, tokenizer=tokenizer), plain)
    if name == "llama":
        network = accelerate.cpu_offload(network_of(name), execution_device=torch.device("cpu"))
        spread = load_model(network, tokenizer=tokenizer)
        assert spread.lies_on == ("cpu",)
        assert_same(spread, plain)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "bfloat16"}, "spread keeps its dtype"),
        ({"device": "cpu"}, "spread stays where it is"),
        ({"max_memory": "1GiB"}, "max_memory goes with a model's name"),
    ],
)
def test_a_spread_model_is_not_moved(options: Any, message: str, tmp_path: Path, tokenizer: Any) -> None:
    network = spread_over(network_of("llama"), "disk", tmp_path)
    with pytest.raises(OptionError, match=message):
        load_model(network, tokenizer=tokenizer, **options)


def test_a_weight_left_on_meta_is_named(tokenizer: Any) -> None:
    network = network_of("llama")
    network.model.norm.to("meta")
    for left in (network, network.to("meta")):
        with pytest.raises(ModelUnsupported, match=r"'model\.\w+\.weight' has no numbers \(it is on 'meta'") as caught:
            load_model(left, tokenizer=tokenizer)
        assert "\n" not in str(caught.value)


# What is said of memory.


def test_sizes_and_devices_are_read() -> None:
    assert parse_max_memory("2GiB") == {None: 2 << 30}
    assert parse_max_memory("0=20GiB, cpu=1.5 GB") == {0: 20 << 30, "cpu": 1_500_000_000}
    assert parse_max_memory("cuda:1=3kb,CPU=0B") == {1: 3000, "cpu": 0}
    assert parse_max_memory(str(write_max_memory({1: 5, "cpu": "2MiB"}))) == {1: 5, "cpu": 2 << 20}


NONSENSE = (
    "",
    "2",
    "GiB",
    "-1GiB",
    "2iB",
    "much",
    "disk=3GiB",
    "mps=1GiB",
    "1GiB,2GiB",
    "cpu=1GB,cpu=2GB",
    "0=",
    "=1GB",
)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("handmade:planted", {"max_memory": "1GiB"}, "made in memory, cannot be spread"),
        ("fairseq:model.pt", {"max_memory": "1GiB"}, "a fairseq checkpoint cannot be spread"),
        ("builtin:pydocs", {"max_memory": "1GiB", "device": "meta"}, "for CUDA cards and the CPU, not for meta"),
        ("builtin:pydocs", {"max_memory": "0=1GiB"}, "names card 0, but there are 0 cards here"),
        ("builtin:pydocs", {"max_memory": "0=1GiB", "device": "cpu"}, "names card 0, but cpu was asked for"),
        *(("builtin:pydocs", {"max_memory": text}, "does not say how much of which device") for text in NONSENSE),
    ],
)
def test_what_cannot_be_spread_is_refused(source: str, options: Any, message: str) -> None:
    assert message in refused((ModelError, OptionError), source, **options)


# Peft asks transformers by an old name.
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_adapters_and_quantised_weights_are_not_spread(stored: Any, tmp_path: Path) -> None:
    folder, size = stored("llama")
    config = Path(folder) / "config.json"
    base = AutoModelForCausalLM.from_pretrained(folder)
    peft.get_peft_model(base, peft.LoraConfig(target_modules=["down_proj"])).save_pretrained(tmp_path)
    with pytest.raises(ModelUnsupported, match="with an adapter cannot be spread"):
        load_model(folder, adapter=str(tmp_path), max_memory=f"{size // 2}B")
    quantised = '"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true}'
    config.write_text(config.read_text().replace("{", "{" + quantised + ",", 1))
    with pytest.raises(ModelUnsupported, match="quantised, cannot be spread"):
        load_model(folder, max_memory=f"{size // 2}B")


# Graphics cards, of which there are none here: what is asked of accelerate, and one test for a machine that has two.


@pytest.fixture
def two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda card: (1000 * (card + 1), 9999))


def test_cards_come_first_then_memory_then_disk(two_cards: None) -> None:
    def budgets(text: str | None, device: str | None = None) -> list[tuple[int | str, int]]:
        room = Room(torch.float32, None if device is None else torch.device(device), text)
        return [pair for pair in room.budgets().items() if pair[0] != "cpu" or "cpu" in str(text)]

    assert (budgets(None), budgets("500B")) == ([(0, 900), (1, 1800)], [(0, 500), (1, 500)])
    assert (budgets("1=7B,cpu=8B"), budgets("cpu=8B")) == ([(1, 7), ("cpu", 8)], [(0, 900), (1, 1800), ("cpu", 8)])
    assert (budgets("500B", "cuda:1"), budgets(None, "cuda")) == ([(1, 500)], [(0, 900), (1, 1800)])
    assert Room(torch.float32, torch.device("cuda:1")).device_map(None, None, stored=None, trust=False) is None
    with pytest.raises(OptionError, match="names card 2, but there are 2 cards here"):
        budgets("2=1GiB")
    network = build("llama", num_hidden_layers=12, vocab_size=40)
    config, size = network.config, bytes_of(network)
    quarter = size // 4

    def device_map(text: str) -> Any:
        return Room(torch.float32, None, text).device_map(AutoModelForCausalLM, config, stored=None, trust=False)

    found = device_map(f"0={quarter}B,1={quarter}B,cpu={quarter}B")
    assert list(dict.fromkeys((found or {}).values())) == [0, 1, "cpu", "disk"], found
    assert device_map(f"0={2 * size}B") is None


_ON_CARDS = """
import sys, torch
from mnemoscope.models import load_model
from mnemoscope.mining import mine
folder, text, out = sys.argv[1:]
plain = load_model(folder, device="cuda:0")
size = sum(w.numel() * 4 for w in plain.anatomy.model.parameters())
spread = load_model(folder, max_memory={0: size * 3 // 4, 1: size})
assert len(set(spread.devices)) == 2, spread.devices
assert spread.fingerprint == plain.fingerprint
for name, model in (("plain", plain), ("spread", spread)):
    mine(model, text, out=f"{out}-{name}", split="line", triggers=5, removals=4, prefixes=20)
"""


@pytest.mark.skipif(not Path("/dev/nvidia1").exists(), reason="needs two graphics cards")
def test_two_cards(stored: Any, tmp_path: Path) -> None:
    folder, _ = stored("llama")
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"the cat {number} sat on the mat" for number in range(60)))
    seen = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    subprocess.run([sys.executable, "-c", _ON_CARDS, folder, str(text), str(tmp_path / "atlas")], env=seen, check=True)
    one, other = (
        {path.relative_to(atlas): path.read_bytes() for path in sorted(atlas.rglob("*.parquet"))}
        for atlas in (tmp_path / "atlas-plain", tmp_path / "atlas-spread")
    )
    assert one == other
