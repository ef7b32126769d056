"""Families that the table does not know: two made-up ones are found and proved, others are refused in one line."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from mnemoscope.errors import ModelUnsupported
from mnemoscope.models import load_model, read_blocks
from mnemoscope.models.anatomy import anatomy
from mnemoscope.models.anatomy.families import FAMILIES

IDS = torch.tensor([[5, 1, 8, 3, 11, 2], [7, 4, 0, 9, 6, 6]])


class MadeUpConfig(PreTrainedConfig):
    model_type = "made-up"

    def __init__(self, vocab_size=280, hidden_size=16, num_hidden_layers=2, max_position_embeddings=64, **rest):
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self.num_hidden_layers, self.max_position_embeddings = num_hidden_layers, max_position_embeddings
        super().__init__(**rest)


class Scale(nn.Module):
    """An RMS norm under another name, whose gain is 1 + strength."""

    def __init__(self, width):
        super().__init__()
        self.strength = nn.Parameter(torch.randn(width) * 0.2)

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * (1 + self.strength)


class Mix(nn.Module):
    """Causal mixing that is no attention: each position takes the mean of those before it."""

    def __init__(self, width):
        super().__init__()
        self.inward, self.outward = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        counts = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)[None, :, None]
        return self.outward(self.inward(x).cumsum(1) / counts)


class Turned(nn.Module):
    """A linear map that keeps its matrix as [in, out] and is no nn.Linear."""

    def __init__(self, entering, leaving):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(entering, leaving) * 0.3)
        self.bias = nn.Parameter(torch.randn(leaving) * 0.3)

    def forward(self, x):
        return x @ self.weight + self.bias


class LanternBlock(nn.Module):
    """Parallel; fused keys with the UP half first; squared ReLU gate; adds in place."""

    def __init__(self, width):
        super().__init__()
        self.wick, self.mixing = Scale(width), Mix(width)
        self.both, self.pour = nn.Linear(width, 48, bias=False), nn.Linear(24, width)

    def forward(self, stream):
        x = self.wick(stream)
        up, gate = self.both(x).chunk(2, -1)
        out = self.pour(torch.relu(gate).square() * up)
        out += self.mixing(x)
        return stream + out


class HarbourBlock(nn.Module):
    """Post-norm, ungated, maps turned round; attention-like part after which the first norm stands."""

    def __init__(self, width):
        super().__init__()
        self.tide, self.quay, self.mole = Mix(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.load, self.crane, self.unload = Turned(width, 24), nn.GELU(), Turned(24, width)

    def forward(self, stream):
        stream = self.quay(stream + self.tide(stream))
        return (self.mole(stream + self.unload(self.crane(self.load(stream)))),)


class FogBlock(nn.Module):
    """No feed-forward layer that can be read: the maps are multiplied with each other through a cosine and a sum."""

    def __init__(self, width):
        super().__init__()
        self.one, self.two, self.back = nn.Linear(width, 24), nn.Linear(width, 24), nn.Linear(24, width)

    def forward(self, stream):
        return stream + self.back(torch.cos(self.one(stream)) + self.two(stream).square())


class MadeUp(PreTrainedModel):
    """A language model of made-up blocks; nothing in it has a usual name."""

    config_class = MadeUpConfig
    block = LanternBlock
    normed = True

    def __init__(self, config):
        super().__init__(config)
        self.glossary = nn.Embedding(config.vocab_size, config.hidden_size)
        self.storeys = nn.ModuleList([self.block(config.hidden_size) for _ in range(config.num_hidden_layers)])
        self.roof = Scale(config.hidden_size) if self.normed else nn.Identity()
        self.mouth = nn.Linear(config.hidden_size, config.vocab_size, bias=True)

    def get_output_embeddings(self):
        return None

    def climb(self, input_ids):
        """What the last block gives."""
        stream = self.glossary(input_ids)
        for storey in self.storeys:
            stream = storey(stream)
            stream = stream[0] if isinstance(stream, tuple) else stream
        return stream

    def forward(self, input_ids):
        return CausalLMOutput(logits=self.mouth(self.roof(self.climb(input_ids))) * 0.5)


class Harbour(MadeUp):
    block = HarbourBlock
    normed = False


class Fog(MadeUp):
    block = FogBlock


class TwoTowers(MadeUp):
    """Two lists of as many blocks: which are the blocks cannot be told."""

    def __init__(self, config):
        super().__init__(config)
        self.shadows = nn.ModuleList([LanternBlock(config.hidden_size) for _ in range(config.num_hidden_layers)])

    def forward(self, input_ids):
        for shadow in self.shadows:
            shadow(self.glossary(input_ids))
        return super().forward(input_ids)


class Echo(MadeUp):
    """Says something that is not its head's scores."""

    def forward(self, input_ids):
        return CausalLMOutput(logits=super().forward(input_ids).logits.cumsum(-1))


class Chain(MadeUp):
    """Its blocks are a Sequential."""

    def __init__(self, config):
        super().__init__(config)
        self.storeys = nn.Sequential(*self.storeys)


class Carousel(MadeUp):
    """One block that stands in both places."""

    def __init__(self, config):
        super().__init__(config)
        self.storeys = nn.ModuleList([self.storeys[0]] * 2)


class Roundabout(MadeUp):
    """Its blocks are gone through twice."""

    def forward(self, input_ids):
        stream = self.glossary(input_ids)
        for storey in [*self.storeys, *self.storeys]:
            stream = storey(stream)
        return CausalLMOutput(logits=self.mouth(self.roof(stream)))


class Twins(MadeUp):
    """Two blocks that share their weights."""

    def __init__(self, config):
        super().__init__(config)
        first, second = self.storeys
        for one, other in zip(first.modules(), second.modules(), strict=True):
            other._parameters.update(one._parameters)


class Loose(MadeUp):
    """Its blocks stand in no list."""

    def __init__(self, config):
        super().__init__(config)
        self.cellar, self.attic = self.storeys
        del self.storeys

    def forward(self, input_ids):
        stream = self.attic(self.cellar(self.glossary(input_ids)))
        return CausalLMOutput(logits=self.mouth(self.roof(stream)))


class UncountedConfig(MadeUpConfig):
    """Does not say how many blocks there are."""

    def __init__(self, **rest):
        super().__init__(**rest)
        del self.num_hidden_layers


class Uncounted(Loose):
    config_class = UncountedConfig

    def __init__(self, config):
        PreTrainedModel.__init__(self, config)
        self.glossary, self.mouth = nn.Embedding(280, 16), nn.Linear(16, 280)
        self.cellar, self.attic, self.roof = LanternBlock(16), LanternBlock(16), Scale(16)


class Mirror(MadeUp):
    """What its head reads is the norm's output from back to front."""

    def forward(self, input_ids):
        return CausalLMOutput(logits=self.mouth(self.roof(self.climb(input_ids)).flip(-1)))


class Wordless(MadeUp):
    """Its head is a matrix, and no module."""

    def forward(self, input_ids):
        return CausalLMOutput(logits=self.roof(self.climb(input_ids)) @ self.mouth.weight.T)


class Hall(MadeUp):
    """A map lies between its norm and its head."""

    def __init__(self, config):
        super().__init__(config)
        self.hall = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, input_ids):
        return CausalLMOutput(logits=self.mouth(self.hall(self.roof(self.climb(input_ids)))))


class OldConfig(PreTrainedConfig):
    """Says its sizes in the words of an old decoder."""

    model_type = "old-decoder"

    def __init__(self, n_layer=2, n_embd=16, block_size=64, **rest):
        self.n_layer, self.n_embd, self.block_size = n_layer, n_embd, block_size
        super().__init__(**rest)


class Old(MadeUp):
    config_class = OldConfig

    def __init__(self, config):
        PreTrainedModel.__init__(self, config)
        self.glossary = nn.Embedding(280, config.n_embd)
        self.storeys = nn.ModuleList([LanternBlock(config.n_embd) for _ in range(config.n_layer)])
        self.roof, self.mouth = Scale(config.n_embd), nn.Linear(config.n_embd, 280)

    def get_input_embeddings(self):
        return self.glossary


def make(kind):
    torch.manual_seed(1)
    return kind(kind.config_class()).eval().requires_grad_(False)


@pytest.mark.parametrize("kind", [Chain, Twins, Carousel, Old], ids=lambda kind: kind.__name__)
def test_blocks_are_found_however_they_are_kept_and_counted(kind, tokenizer):
    hf = make(kind)
    model = load_model(hf, tokenizer=tokenizer)
    assert model.sizes.memories == (24, 24)
    for layer in range(2):
        assert torch.equal(model.values(layer), hf.storeys[layer].pour.weight.T)
    torch.testing.assert_close(model.logits(IDS), hf(IDS).logits)
    assert model.sizes.context == 64
    if kind is Carousel:
        assert hf.storeys[0] is hf.storeys[1], "the user's model stays as it is"
        assert model.values(0).data_ptr() == model.values(1).data_ptr() == hf.storeys[0].pour.weight.data_ptr()


@pytest.mark.parametrize("kind", [MadeUp, Harbour, Hall])
def test_a_found_family_reads_like_any_other(kind, tokenizer):
    hf = make(kind)
    model, post = load_model(hf, tokenizer=tokenizer), kind is Harbour
    found = (model.family, model.block, model.gated, model.has_negative, model.final_norm, model.sizes.memories)
    assert found == ("structural", "post-norm" if post else "parallel", not post, True, not post, (24, 24))
    blocks = {}
    with read_blocks(model, blocks.__setitem__):
        states = model.backbone(IDS)
    scale = 1.0 if kind is Hall else 0.5
    assert model.anatomy.logit_scale == pytest.approx(scale)
    torch.testing.assert_close(hf.mouth(states) * scale, hf(IDS).logits)
    torch.testing.assert_close(model.scores(blocks[1].layer_output, projection="lens"), hf(IDS).logits)
    assert load_model(hf, tokenizer=tokenizer, dtype="bfloat16").family == "structural"
    for layer, block in enumerate(hf.storeys):
        if post:  # whose maps are turned round
            weights, bias = (block.load.weight.T, None, block.unload.weight), block.load.bias
            assert torch.equal(model.layer(layer).ffn.gate.bias(), bias)
            assert model.anatomy.layers[layer].output_norm is block.mole
        else:
            weights = (block.both.weight[24:], block.both.weight[:24], block.pour.weight.T)
            assert torch.equal(model.layer(layer).ffn.down.bias(), block.pour.bias)
        read = (model.keys(layer), model.up_keys(layer), model.values(layer))
        assert all(a is b is None or torch.equal(a, b) for a, b in zip(read, weights, strict=True))
    if kind is Hall:  # a map lies between its norm and its head
        gained = hf.storeys[0].pour.weight.T * (1 + hf.roof.strength)
        expected = gained @ hf.hall.weight.T @ hf.mouth.weight.T
        torch.testing.assert_close(model.scores(model.values(0), projection="gain"), expected, atol=1e-4, rtol=1e-4)


REFUSED = {
    Fog: "no linear map of its blocks can be read",
    TwoTowers: "2 lists of num_hidden_layers = 2 modules",
    Echo: "logits are not its head's scores",
    Roundabout: "its blocks run more than once in a forward",
    Loose: "there is no list of num_hidden_layers = 2 modules",
    Uncounted: "there is no list$",
    Wordless: "no module of it computes scores over the vocabulary",
    Mirror: "what lies between its last block and its head is unclear",
}


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_what_cannot_be_read_is_refused_in_one_line(kind, tokenizer):
    with pytest.raises(ModelUnsupported, match=REFUSED[kind]) as caught:
        load_model(make(kind), tokenizer=tokenizer)
    assert "\n" not in str(caught.value)
    assert "'made-up'" in str(caught.value)


@pytest.mark.fast(8)
def test_every_known_family_is_found_without_its_row(family, case, tiny, tokenizer, monkeypatch):
    known = load_model(tiny(family), tokenizer=tokenizer)
    monkeypatch.setattr(anatomy, "FAMILIES", ())
    found = load_model(tiny(family), tokenizer=tokenizer)
    assert (found.family, found.block, found.gated) == ("structural", known.block, known.gated)
    for layer in range(2):
        assert torch.equal(found.values(layer), known.values(layer))
        assert torch.equal(found.keys(layer), known.keys(layer))
    assert (found.up_keys(0) is None) == (known.up_keys(0) is None)


ROWLESS = {
    "olmo": ("pre-norm", True),
    "olmo3": ("sandwich", True),
    "glm4": ("sandwich", True),
    "stablelm": ("pre-norm", True),
    "starcoder2": ("pre-norm", False),
    "nemotron": ("pre-norm", False),
}


@pytest.mark.parametrize("kind", ROWLESS)
def test_families_of_transformers_without_a_row_are_found(kind, tokenizer):
    sizes = {"vocab_size": 280, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 8}
    more = {"num_key_value_heads": 2, "intermediate_size": 24, "max_position_embeddings": 64, "pad_token_id": 0}
    torch.manual_seed(0)
    hf = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(kind, **sizes, **more, bos_token_id=None, eos_token_id=None)
    ).requires_grad_(False)
    for parameter in hf.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.3)
    model = load_model(hf, tokenizer=tokenizer)
    assert (model.family, model.block, model.gated) == ("structural", *ROWLESS[kind])
    assert model.sizes.memories == (24, 24)


def test_a_model_that_fails_by_itself_is_refused_in_one_line(tiny, tokenizer):
    hf = tiny("llama")
    hf.model.layers[1].self_attn.o_proj = nn.Linear(5, 16)
    with pytest.raises(ModelUnsupported, match="'memory:LlamaForCausalLM' cannot be run: mat1 and mat2"):
        load_model(hf, tokenizer=tokenizer)


def test_a_row_whose_modules_are_not_there_gives_way_to_the_structure(tiny, tokenizer, monkeypatch):
    """A known model type with renamed modules (an older or newer transformers, or somebody's own code)."""
    moved = tuple(replace(row, down="mlp.elsewhere") if row.name == "llama" else row for row in FAMILIES)
    monkeypatch.setattr(anatomy, "FAMILIES", moved)
    assert load_model(tiny("llama"), tokenizer=tokenizer).family == "structural"
