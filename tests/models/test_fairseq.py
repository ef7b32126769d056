"""Checkpoints in fairseq's format, of every kind, against a slow network written from the format's description."""

import argparse
import math
import sys
import types
from collections import OrderedDict
from dataclasses import replace

import pytest
import torch

from mnemoscope.errors import ModelUnsupported, OptionError
from mnemoscope.models import load_model, read_coefficients
from mnemoscope.models.forward.attention import eager_attention, find_attention, read_attention
from models.checkpoints import (
    CONTEXT,
    END,
    HIDDEN,
    KINDS,
    LAYERS,
    MEMORIES,
    ROWS,
    Kind,
    Slow,
    args_of,
    weights_of,
    write,
)

IDS = [END, *((7 * place + 3) % ROWS for place in range(CONTEXT - 1))]
TIED = KINDS["tied"]


def compare(model, slow, *, lens=True):
    """Hidden states and scores of one long sentence, and of two unequal ones in one batch."""
    with torch.inference_mode():
        hidden, scores = model.backbone(torch.tensor([IDS]))[0], model.logits(torch.tensor([IDS]))[0]
    exact, _ = slow.hidden(IDS)
    expected = slow.scores(exact)
    unit = max(1.0, float(exact.abs().max()))
    assert float((hidden - exact).abs().max()) < 4e-6 * unit
    # Scores grow with the stream, which grows without bound where nothing norms it.
    assert float((scores - expected).abs().max()) < 2e-5 * max(1.0, float(expected.abs().max()) / 20)
    ordered = expected.sort(1, descending=True).values
    clear = ordered[:, 0] - ordered[:, 1] > 1e-4
    assert clear.sum() > 20
    assert torch.equal(scores.argmax(1)[clear], expected.argmax(1)[clear])
    short = IDS[:5]
    padded = model.logits(torch.tensor([[*short, 1, 1, 1], IDS[:8]]))
    torch.testing.assert_close(padded[0, :5], scores[:5], rtol=1e-5, atol=1e-4)


@pytest.mark.fast(4)
@pytest.mark.parametrize("name", list(KINDS))
def test_every_kind_computes_what_the_format_says(name, tmp_path):
    kind = KINDS[name]
    args, weights = args_of(kind), weights_of(kind)
    model, slow = load_model(write(tmp_path, args, weights)), Slow(args, weights)
    compare(model, slow)
    assert (model.family, model.activation) == ("fairseq", kind.activation)
    assert model.block == ("pre-norm" if kind.pre_norm else "post-norm")
    assert model.final_norm is (kind.final_norm and kind.pre_norm)
    assert model.linear_head is (kind.softmax_cutoffs is None)
    assert model.has_negative is (kind.activation != "relu")
    assert model.sizes.memories == (MEMORIES,) * LAYERS
    assert (model.sizes.hidden, model.sizes.vocabulary, model.sizes.context) == (HIDDEN, ROWS, CONTEXT)
    assert (model.beginning.token, model.beginning.kind, model.longest) == (END, "end-of-text", CONTEXT - 1)
    assert max(model.proof.residual, model.proof.ablation, model.proof.keys, model.proof.scores) < 1e-5
    seen = {}
    with torch.inference_mode(), read_coefficients(model, lambda layer, m: seen.__setitem__(layer, m[0].clone())):
        model.backbone(torch.tensor([IDS]))
    for layer, expected in enumerate(slow.hidden(IDS)[1]):
        assert float((seen[layer] - expected).abs().max()) < 1e-5 * max(1.0, float(expected.abs().max()))
        values = model.values(layer)
        torch.testing.assert_close(values.double(), slow.values(layer))
        for vectors in (values, -values):
            gain = slow.gain(layer, vectors.double())
            found = model.scores(vectors, projection="gain", layer=layer)
            torch.testing.assert_close(found.double(), gain, rtol=1e-5, atol=1e-4)
            assert torch.equal(model.scorer().scores(model.fold_as_value(layer, vectors)), found)
        lens = model.scores(5 * values, projection="lens").double()
        stream = slow.read_out(5 * values.double())
        torch.testing.assert_close(lens, slow.scores(stream), rtol=1e-5, atol=1e-4)
    if kind.output_width == HIDDEN:
        raw = model.scores(values, projection="raw")
        torch.testing.assert_close(raw.double(), slow.scores(values.double()), rtol=1e-5, atol=1e-4)
    if model.linear_head:
        assert model.head().shape == (ROWS, kind.output_width)
    else:
        total = model.logits(torch.tensor([IDS])).double().exp().sum(-1)
        torch.testing.assert_close(total, torch.ones_like(total), rtol=1e-5, atol=1e-5)
        with pytest.raises(ModelUnsupported, match="an adaptive softmax, not one matrix; ask for scores"):
            model.head()


@pytest.mark.parametrize("name", ["tied", "post-norm"])
def test_attention_is_read_as_the_format_says(name, tmp_path):
    kind = KINDS[name]
    args, weights = args_of(kind), weights_of(kind)
    model, slow = load_model(write(tmp_path, args, weights)), Slow(args, weights)
    attention, seen = find_attention(model), {}
    note = lambda layer, part, given: seen.update({(layer, part): given[0].clone()})  # noqa: E731
    reading = read_attention(model, attention, note)
    ids = IDS[:6]
    with eager_attention(model), reading, torch.inference_mode():
        model.backbone(torch.tensor([ids]))
    assert [found.separable for found in attention] == [True] * LAYERS
    for layer in range(LAYERS):
        before = f"layers.{layer}.self_attn"
        stream = seen[layer, "input"].double()
        rows = slow.normed(f"{before}_layer_norm", stream) if kind.pre_norm else stream
        found = seen[layer, "weights"]
        torch.testing.assert_close(found.double(), slow.attention_weights(before, rows), atol=1e-5, rtol=1e-4)
        assert not found.triu(1).any()
        torch.testing.assert_close(found.sum(-1), torch.ones(found.shape[:2]))


def test_square_projections_are_told_apart_by_the_options_alone(tmp_path):
    """Of the same shape either way round, and here of the same numbers."""
    kind = KINDS["square projections, tied"]
    weights = weights_of(kind)
    tied = load_model(write(tmp_path / "tied", args_of(kind), weights))
    other = replace(kind, tied_projections=False)
    free = load_model(write(tmp_path / "free", args_of(other), weights))
    ids = torch.tensor([IDS])
    assert torch.equal(tied.backbone(ids), free.backbone(ids))
    assert not torch.allclose(tied.logits(ids), free.logits(ids), atol=0.1)
    compare(tied, Slow(args_of(kind), weights))
    compare(free, Slow(args_of(other), weights))


@pytest.mark.fast(2)
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_fast", "gelu_accurate", "swish", "tanh", "linear"])
def test_activations(activation, tmp_path):
    args = args_of(replace(TIED, activation=activation))
    compare(load_model(write(tmp_path, args, weights_of(TIED))), Slow(args, weights_of(TIED)))


@pytest.mark.parametrize(
    ("cutoffs", "dtype"),
    [
        *(("9, 20", "float16"), ("[9,20]", "bfloat16"), ("(9, 20)", "float64")),
        *(("9,20,", "float32"), ([9, 20], "float32"), ((9, 20), "float32")),
    ],
)
def test_spellings_of_cutoffs_and_stored_types_which_are_widened_before_anything_is_computed(cutoffs, dtype, tmp_path):
    weights = OrderedDict((name, tensor.to(getattr(torch, dtype))) for name, tensor in weights_of(TIED).items())
    model = load_model(write(tmp_path, args_of(TIED, adaptive_input_cutoff=cutoffs), weights))
    assert model.dtype == torch.float32
    compare(model, Slow(args_of(TIED), weights))


# --- containers, types, old spellings ----------------------------------------------------------------------------


class Meter:
    """Pickles itself as a meter of fairseq's."""

    def __init__(self):
        self.val, self.sum, self.count = 3.5, torch.tensor(7.0), 2


@pytest.fixture
def meters(monkeypatch):
    """`fairseq.meters` with its three classes, while a checkpoint is written; gone when it is read."""
    packages = {name: types.ModuleType(name) for name in ("fairseq", "fairseq.meters")}
    for name in ("AverageMeter", "TimeMeter", "StopwatchMeter"):
        own = type(name, (Meter,), {"__module__": "fairseq.meters"})
        setattr(packages["fairseq.meters"], name, own)
    for name, module in packages.items():
        monkeypatch.setitem(sys.modules, name, module)
    return packages["fairseq.meters"]


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_meters_of_fairseq_become_empty_shells(legacy, tmp_path, meters, monkeypatch):
    state = {"train_meters": OrderedDict(a=meters.AverageMeter(), b=meters.TimeMeter(), c=meters.StopwatchMeter())}
    args, weights = args_of(TIED), weights_of(TIED)
    optimiser = {"state": {0: {"exp_avg": torch.zeros(3)}}}
    name = write(tmp_path, args, weights, legacy=legacy, extra_state=state, last_optimizer_state=optimiser)
    for package in ("fairseq", "fairseq.meters"):
        monkeypatch.delitem(sys.modules, package)
    compare(load_model(name), Slow(args, weights))


def old_names(weights, *, second_norm):
    """The weights under the names of fairseq's first versions."""
    found = OrderedDict()
    for name, tensor in weights.items():
        block, _, part = name.partition(".self_attn.")
        if part.startswith("q_proj"):
            kind = part.removeprefix("q_proj")
            parts = [weights[f"{block}.self_attn.{letter}_proj{kind}"] for letter in "qkv"]
            found[f"{block}.self_attn.in_proj_{kind[1:]}"] = torch.cat(parts)
        elif not part.startswith(("k_proj", "v_proj")):
            new = name.replace("self_attn_layer_norm", "layer_norms.0")
            found[new.replace("final_layer_norm", f"layer_norms.{second_norm}")] = tensor
    found["decoder.embed_positions.weights"] = torch.full((40, HIDDEN), math.nan)
    return found


@pytest.mark.parametrize("second_norm", [1, 2])
def test_old_names(second_norm, tmp_path):
    args, weights = args_of(TIED), weights_of(TIED)
    old = old_names(weights, second_norm=second_norm)
    assert not any("q_proj" in name or "final_layer_norm" in name for name in old)
    model = load_model(write(tmp_path / "old", args, old))
    compare(model, Slow(args, weights))
    assert model.fingerprint == load_model(write(tmp_path / "new", args, weights)).fingerprint


def without(args, *names):
    return argparse.Namespace(**{name: value for name, value in vars(args).items() if name not in names})


@pytest.mark.parametrize("not_tied", [False, True])
def test_old_options(not_tied, tmp_path):
    """`no_tie_adaptive_proj` means its opposite, and no final norm unless `decoder_final_norm` says so."""
    kind = replace(TIED, tied_projections=not not_tied)
    args, weights = args_of(kind), weights_of(kind)
    old = without(args, "tie_adaptive_proj", "no_decoder_final_norm")
    old.no_tie_adaptive_proj = not_tied
    model = load_model(write(tmp_path / "no-norm", old, weights))
    assert not model.final_norm
    compare(model, Slow(args, weights))

    normed = weights_of(replace(kind, final_norm=True))
    old.decoder_final_norm = True
    model = load_model(write(tmp_path / "norm", old, normed))
    assert model.final_norm
    compare(model, Slow(args, normed))


def test_what_is_absent_is_what_fairseq_takes_it_for(tmp_path):
    kind = Kind(cutoffs="9", softmax_cutoffs="9", factor=4, softmax_factor=4, final_norm=True)
    args, weights = args_of(kind), weights_of(kind)
    absent = ("adaptive_input_factor", "adaptive_softmax_factor", "decoder_input_dim", "decoder_output_dim", "arch")
    others = ("activation_fn", "no_decoder_final_norm", "decoder_normalize_before", "max_target_positions")
    few = without(args, *absent, *others, "tokens_per_sample", "share_decoder_input_output_embed")
    model = load_model(write(tmp_path, few, weights))
    assert model.sizes.context == 1024
    compare(model, Slow(args, weights))


@pytest.mark.parametrize(("version", "kept"), [(None, False), (1.0, False), (2.0, False), (3.0, True), (4.0, True)])
def test_the_final_norm_counts_from_version_3_on(version, kept, tmp_path):
    kind = replace(TIED, final_norm=True, version=version)
    args, weights = args_of(kind), weights_of(kind)
    model = load_model(write(tmp_path / "with", args, weights))
    assert model.final_norm is kept
    bare = OrderedDict((name, tensor) for name, tensor in weights.items() if not name.startswith("decoder.layer_norm"))
    compare(model, Slow(args, weights if kept else bare))
    if not kept:
        assert load_model(write(tmp_path / "without", args, bare)).fingerprint == model.fingerprint


def test_the_row_of_padding_is_a_word_like_others(tmp_path):
    args, weights = args_of(TIED), weights_of(TIED)
    model = load_model(write(tmp_path, args, weights))
    embedding = weights["decoder.embed_tokens.embeddings.0.0.weight"][1]
    assert embedding.abs().min() > 0
    assert torch.equal(model.anatomy.two_level.head.word_proj.weight[1], embedding)


def test_tied_weights_are_one(tmp_path):
    copies = OrderedDict((name, tensor.clone()) for name, tensor in weights_of(TIED).items())
    first = load_model(write(tmp_path / "shared", args_of(TIED), weights_of(TIED)))
    second = load_model(write(tmp_path / "copies", args_of(TIED), copies))
    free = load_model(write(tmp_path / "free", args_of(KINDS["untied"]), weights_of(KINDS["untied"])))
    assert first.fingerprint == second.fingerprint != free.fingerprint
    assert first.sizes == second.sizes
    words = sum(size * width + width * HIDDEN for size, width in ((9, 16), (11, 8), (ROWS - 20, 4)))
    block = 4 * (HIDDEN * HIDDEN + HIDDEN) + 4 * HIDDEN + 2 * HIDDEN * MEMORIES + HIDDEN + MEMORIES
    assert first.sizes.parameters == words + 2 * HIDDEN + LAYERS * block
    assert first.sizes.ffn_parameters == LAYERS * (2 * HIDDEN * MEMORIES + HIDDEN + MEMORIES)
    assert free.sizes.parameters > first.sizes.parameters


def test_the_fingerprint_is_of_weights_options_and_words(tmp_path):
    args, weights = args_of(TIED), weights_of(TIED)
    first = load_model(write(tmp_path / "a", args, weights)).fingerprint
    assert load_model(write(tmp_path / "b", args, weights, legacy=True)).fingerprint == first
    assert load_model(write(tmp_path / "c", args_of(TIED, arch="x", lr=[1]), weights)).fingerprint == first
    assert load_model(write(tmp_path / "d", args, weights), dtype="bfloat16").fingerprint == first
    assert load_model(write(tmp_path / "e", args_of(TIED, activation_fn="tanh"), weights)).fingerprint != first
    weights["decoder.layers.1.fc2.bias"].view(torch.int32)[3] ^= 1
    assert load_model(write(tmp_path / "f", args, weights)).fingerprint != first
    lines = (tmp_path / "a" / "dict.txt").read_text().replace("the ", "thy ")
    (tmp_path / "dict.txt").write_text(lines)
    name = f"fairseq:{tmp_path / 'a' / 'model.pt'}"
    assert load_model(name, dict=tmp_path / "dict.txt").fingerprint != first


def test_other_number_formats(tmp_path):
    name = write(tmp_path, args_of(TIED), weights_of(TIED))
    exact = load_model(name)
    for dtype in ("bfloat16", "float16"):
        model = load_model(name, dtype=dtype)
        assert model.keys(0).dtype == model.dtype == getattr(torch, dtype)
        values = exact.values(0)
        found = model.scores(values, projection="gain", layer=0)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.exp().sum(1), torch.ones(MEMORIES))
        torch.testing.assert_close(found, exact.scores(values, projection="gain", layer=0), rtol=0.05, atol=0.1)


def test_a_dict_goes_with_fairseq_only(tmp_path):
    name = write(tmp_path, args_of(TIED), weights_of(TIED))
    with pytest.raises(OptionError, match=r"a dict.txt \(dict\) goes with fairseq:PATH.pt only"):
        load_model("handmade:planted", dict=tmp_path / "dict.txt")
    with pytest.raises(OptionError, match="give dict instead of tokenizer"):
        load_model(name, tokenizer=object())
