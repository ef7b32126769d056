"""Random models on made-up text: what is measured, and that a machine with torch and transformers alone measures it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.speed import shapes
from benchmarks.speed.shapes import RandomText, measure_shape, random_model, same_as_on_the_host

SIZES = {"num_hidden_layers": 2, "hidden_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1}
SIZES |= {"vocab_size": 1100}
SMALL = {
    "gpt2-small": {"n_layer": 2, "n_embd": 24, "n_head": 2, "vocab_size": 1100},
    "8b": SIZES | {"intermediate_size": 60},
    "experts": SIZES | {"intermediate_size": 16},
}
BARE = """
import runpy, sys
sys.modules.update(dict.fromkeys({names}))
from speed import loops
loops.USER_BATCH = 2
runpy.run_path({script!r}, run_name="__main__")
"""
"""Python takes a module that is None in `sys.modules` for one that is not installed. With all of its 32 sentences the
user's loop would take most of the time: its scores are of GPT-2's whole vocabulary.
"""
STORE = ("polars", "pyarrow", "typer", "rich", "sentencex", "pandas", "altair", "jinja2", "starlette")


@pytest.mark.fast(1)
@pytest.mark.parametrize(("shape", "dtype"), [("gpt2-small", None), ("8b", "float32"), ("experts", None)])
def test_every_loop_is_measured(shape: str, dtype: str | None) -> None:
    found = measure_shape(
        shape, device=torch.device("cpu"), dtype=dtype, rounds=2, warm=300, batch_tokens=128, sizes=SMALL[shape]
    )
    json.dumps(found)
    assert (found["dtype"], found["layers"]) == (dtype or shapes.USUAL_DTYPE[shape], 2)
    assert min(found["tokens_per_second"].values()) > 0
    assert found["same_as_on_the_host"] is None  # this is the host
    flops, rate = found["teraflops"], found["tokens_per_second"]
    if shape != "experts":  # it stops before the end
        assert flops["bare forward"] / flops["mining"] > rate["bare forward"] / rate["mining"]
    assert flops["matrix product"] > 0


@pytest.mark.parametrize(
    ("shape", "feed_forward", "last"), [("8b", 3 * 24 * 60, 24 * 60), ("experts", 24 * 8 + 2 * 3 * 24 * 16, 0)]
)
def test_the_work_of_a_token_is_two_operations_for_each_weight_of_the_blocks(
    shape: str, feed_forward: int, last: int
) -> None:
    """In a mixture of its two experts of eight and of their router; mining stops before the `last` down-projection."""
    model = random_model(shape, dtype="float32", sizes=SMALL[shape])
    each = 24 * (24 + 2 * 12 + 24) + feed_forward
    found = shapes.work_rates(model, shapes.Rates(1, {"bare forward": 1e12, "mining": 1e12}, {}))
    assert found == {"bare forward": 2 * 2 * each, "mining": 2 * 2 * each - 2 * last}


@pytest.mark.fast(1)
@pytest.mark.parametrize("shape", ["gpt2-small", "experts"])
def test_a_device_that_is_the_host_agrees_with_it(shape: str) -> None:
    assert same_as_on_the_host(shape, torch.device("cpu")) == {"shared_triggers": 1.0, "coefficient_difference": 0.0}


def test_made_up_text_is_packed_as_a_text_is() -> None:
    model = random_model("gpt2-small", sizes=SMALL["gpt2-small"])
    text = RandomText(model, tokens=5000, batch_tokens=256)
    batches = [text(number) for number in range(text.count)]
    assert sum(batch.tokens for batch in batches) == text.tokens(range(text.count)) >= 5000
    sentences = sorted(int(i) for batch in batches for i in batch.sentences)
    assert sentences == list(range(sum(len(batch.lengths) for batch in batches)))
    for batch in batches:
        rows, width = batch.ids.shape
        assert rows * width <= 256
        assert (np.diff(batch.lengths) >= 0).all()
        assert width == batch.lengths[-1] + model.reading.offset
        assert int(batch.ids.max()) < 1100
    assert [batch.sampled for batch in batches] == [True] * text.count  # a text this short is sampled whole


@pytest.mark.full
def test_only_torch_and_transformers_are_needed() -> None:
    words = "--model gpt2-small --random-text --layers 1 --device cpu --rounds 1 --warm 60 --batch-tokens 64"
    scripts = Path(shapes.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{scripts.parent / 'src'}:{scripts}"}
    script = str(scripts / "mining_speed.py")

    def ran(names: tuple[str, ...]) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-c", BARE.format(names=names, script=script), *words.split()]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    done = ran(STORE)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model"] == "gpt2-small"
    again = ran((*STORE, "torch"))
    assert "import of torch halted" in again.stderr  # what is refused is refused
