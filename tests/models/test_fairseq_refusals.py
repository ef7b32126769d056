"""Checkpoints that are damaged, foreign or hostile: each is refused in one line, and nothing in them runs."""

import math
import os
from collections import OrderedDict
from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from mnemoscope.errors import ModelDamaged, ModelNotFound, ModelUnsupported
from models.checkpoints import KINDS, args_of, weights_of, write
from models.conftest import refused

TIED = KINDS["tied"]


class Trap:
    """Unpickled without care, it makes a file."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return os.system, (f"touch {self.place}",)


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("place", ["beside", "in the options", "in the weights"])
def test_nothing_in_a_pickle_runs(place, legacy, tmp_path):
    args, weights, others = args_of(TIED), weights_of(TIED), {}
    trap = Trap(tmp_path / "sprung")
    if place == "beside":
        others["extra_state"] = {"x": trap}
    elif place == "in the options":
        args.trap = trap
    else:
        weights["decoder.trap"] = trap
    message = refused(ModelUnsupported, write(tmp_path, args, weights, legacy=legacy, **others))
    assert f"holds '{os.system.__module__}.system'" in message
    assert "nothing was run" in message
    assert not (tmp_path / "sprung").exists()


def test_a_later_pickle_protocol_is_no_way_in(tmp_path):
    write(tmp_path, args_of(TIED), weights_of(TIED))
    torch.save({"args": Trap(tmp_path / "sprung"), "model": {}}, tmp_path / "model.pt", pickle_protocol=4)
    refused((ModelUnsupported, ModelDamaged), f"fairseq:{tmp_path / 'model.pt'}")
    assert not (tmp_path / "sprung").exists()


def edited(tmp_path, *, drop=(), put=None, options=None, kind=TIED):
    """A checkpoint with weights dropped or put in, and options changed."""
    weights = OrderedDict((name, tensor) for name, tensor in weights_of(kind).items() if name not in drop)
    weights.update(put or {})
    return write(tmp_path, args_of(kind, **(options or {})), weights)


@pytest.mark.parametrize(
    "name", [name for name in weights_of(TIED) if not name.endswith(("_float_tensor", "decoder.version"))]
)
def test_every_missing_weight_is_noticed(name, tmp_path):
    message = refused((ModelDamaged, ModelUnsupported), edited(tmp_path, drop=(name,)))
    band = "decoder.embed_tokens.embeddings."
    assert name in message or (name.startswith(band) and ("bands" in message or "words" in message or band in message))


def test_weights_that_do_not_fit(tmp_path):
    def message(folder, **changes):
        return refused((ModelDamaged, ModelUnsupported), edited(tmp_path / folder, **changes))

    fc1 = "decoder.layers.1.fc1.weight"
    assert f"weight '{fc1}' is (24, 15), its options say (24, 16)" in message("shape", put={fc1: torch.zeros(24, 15)})
    assert "has 1 weights that its options do not name, the first is 'decoder.layers.0.encoder_attn.x'" in message(
        "strange", put={"decoder.layers.0.encoder_attn.x": torch.zeros(2)}
    )
    assert f"weight '{fc1}' is torch.int64" in message("integers", put={fc1: torch.zeros(24, 16, dtype=torch.int64)})
    for bad in (math.nan, math.inf):
        spoilt = weights_of(TIED)[fc1].clone()
        spoilt[0, :3] = bad
        assert f"weight '{fc1}' holds 3 NaN or infinite numbers of 384" in message(f"{bad}", put={fc1: spoilt})
    word = "decoder.adaptive_softmax.head.word_proj.weight"
    other = weights_of(TIED)[word] + 1
    assert "its options tie 'decoder.adaptive_softmax.head.word_proj' to" in message("copies", put={word: other})
    assert "fairseq itself no longer reads" in message("first layout", drop=("decoder.adaptive_softmax.version",))
    assert "its options say 1000000000 layers" in message("many", options={"decoder_layers": 10**9})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"decoder_embed_dim": None}, "option 'decoder_embed_dim' is None, not a whole number above 0"),
        ({"decoder_layers": "two"}, "option 'decoder_layers' is 'two', not a whole number"),
        ({"decoder_layers": 2.5}, "option 'decoder_layers' is 2.5, not a whole number"),
        ({"decoder_layers": math.nan}, "option 'decoder_layers' is nan, not a whole number"),
        ({"decoder_layers": math.inf}, "option 'decoder_layers' is inf, not a whole number"),
        ({"decoder_attention_heads": 3}, "hidden size 16 does not go with 3 attention heads"),
        ({"decoder_embed_dim": 2}, "hidden size 2 does not go with 2 attention heads"),
        ({"decoder_embed_dim": 4}, "ties its adaptive softmax to its input, but their bands or widths differ"),
        ({"activation_fn": "zork"}, "uses activation 'zork'; known are relu,"),
        ({"adaptive_input_cutoff": "20,9"}, "option 'adaptive_input_cutoff' is '20,9', not ascending"),
        ({"adaptive_input_cutoff": "x"}, "option 'adaptive_input_cutoff' is 'x', not ascending"),
        ({"adaptive_input_cutoff": None}, "option 'adaptive_input_cutoff' is None, not numbers of words up to the 30"),
        ({"adaptive_softmax_cutoff": "9,999"}, "option 'adaptive_softmax_cutoff' is '9,999', not numbers of words"),
        ({"adaptive_softmax_factor": 0}, "option 'adaptive_softmax_factor' is 0, not a factor of at least 1"),
        ({"adaptive_input_factor": 9.0}, "a factor that leaves some of the width 16 in 3 bands"),
        ({"adaptive_softmax_factor": 1.5}, "ties its adaptive softmax to its input, but their bands or widths differ"),
        ({"adaptive_input": "yes"}, "option 'adaptive_input' is 'yes', not true or false"),
        ({"activation_fn": 3}, "option 'activation_fn' is 3, not a name"),
        ({"decoder_learned_pos": True}, "was trained with 'decoder_learned_pos', which cannot be read"),
        ({"decoder_future_gate": 2}, "was trained with 'decoder_future_gate', which cannot be read"),
        ({"rotary_width": 4, "decoder_layerdrop": 0.1}, "was trained with 'rotary_width', which cannot be read"),
        ({"character_embeddings": True}, "was trained with 'character_embeddings', which cannot be read"),
        ({"decoder_layers_to_keep": "0,2"}, "was trained with 'decoder_layers_to_keep', which cannot be read"),
        ({"adaptive_softmax_cutoff": None}, "that its options name, the first is 'decoder.output_projection.weight'"),
    ],
)
def test_options_that_make_no_network(options, says, tmp_path):
    message = refused((ModelDamaged, ModelUnsupported), edited(tmp_path, options=options))
    assert says in message


def test_a_shared_embedding_must_fit(tmp_path):
    kind = KINDS["plain, shared"]
    name = write(tmp_path, args_of(replace(kind, output_width=8)), weights_of(kind))
    assert "shares its embedding with its head, but their widths differ" in refused(ModelDamaged, name)


def test_where_no_checkpoint_is(tmp_path):
    assert "name is empty" in refused(ModelNotFound, "fairseq: ")
    assert "is a folder; give the checkpoint file in it" in refused(ModelNotFound, f"fairseq:{tmp_path}")
    assert "no checkpoint file" in refused(ModelNotFound, f"fairseq:{tmp_path / 'none.pt'}")
    (tmp_path / "empty.pt").touch()
    assert "empty" in refused(ModelDamaged, f"fairseq:{tmp_path / 'empty.pt'}")


NO_CHECKPOINTS = [
    ([1, 2], ModelDamaged, "holds a list, not a checkpoint of fairseq"),
    (torch.zeros(3), ModelDamaged, "holds a Tensor, not a checkpoint"),
    (Fraction(1, 2), ModelUnsupported, "holds 'fractions.Fraction'"),
    ({"model": {}}, ModelUnsupported, "holds no 'args'"),
    ({"args": None, "model": {}}, ModelUnsupported, "holds no 'args'"),
    ({"args": args_of(TIED)}, ModelUnsupported, "holds no 'model'"),
    ({"args": {"a": 1}, "model": {"b": 2}}, ModelDamaged, "'args' and 'model' are dict and dict"),
    ({"args": args_of(TIED), "model": [1]}, ModelDamaged, "'args' and 'model' are Namespace and list"),
    ({"args": args_of(TIED), "model": {"a": 3}}, ModelDamaged, "its weight 'a' is not a plain tensor"),
    ({"args": args_of(TIED), "model": {}}, ModelDamaged, "lacks the weights of its input"),
]


@pytest.mark.parametrize(("content", "kind", "said"), NO_CHECKPOINTS, ids=[said for *_, said in NO_CHECKPOINTS])
def test_what_is_no_checkpoint(content, kind, said, tmp_path):
    torch.save(content, tmp_path / "x.pt")
    assert said in refused(kind, f"fairseq:{tmp_path / 'x.pt'}")


def test_bytes_that_are_no_checkpoint(tmp_path):
    for content in (b"hello", b"\x80\x02.", os.urandom(500), b"PK\x03\x04" + bytes(90), b"{}"):
        (tmp_path / "other.pt").write_bytes(content)
        said = refused(ModelDamaged, f"fairseq:{tmp_path / 'other.pt'}")
        assert "is not a whole checkpoint of PyTorch" in said
        assert "weights_only" not in said  # PyTorch's advice is to load it unsafely


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_a_torn_checkpoint_is_told_wherever_it_is_torn(legacy, tmp_path):
    write(tmp_path, args_of(TIED), weights_of(TIED), legacy=legacy)
    path = tmp_path / "model.pt"
    whole = path.read_bytes()
    for share in (0.001, 0.1, 0.5, 0.9, 0.999):
        path.write_bytes(whole[: int(share * len(whole))])
        assert "is not a whole checkpoint of PyTorch" in refused(ModelDamaged, f"fairseq:{path}")
