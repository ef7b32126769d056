"""Equal functions, equal atlases: one trained model in the layouts of several families, and ReLU's own symmetry."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from mining.conftest import byte_tokenizer, tables_of
from mining.equal_atlases import assert_equal_atlases
from mnemoscope.atlas import open_atlas
from mnemoscope.mining import mine
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.questions import QUESTIONS, answer
from models.layouts import GATED, MEMORIES, UNGATED, Layout, models_of, text_to_learn

WINDOW = 24
TEXT = text_to_learn(240)
BARE_VALUE = ("max_probability", "entropy", "trigger_log_probability", "literal_max_probability")
MINED = {"split": "line", "triggers": 10, "removals": 24, "prefixes": 80}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The text that the models have learned, and one to ask them about."""
    folder = tmp_path_factory.mktemp("equal")
    (folder / "text.txt").write_text("\n".join(TEXT) + "\n")
    (folder / "validation.txt").write_text("\n".join(text_to_learn(120, seed=1)) + "\n")
    return folder


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return byte_tokenizer(TEXT, rows=320, bos_token="<|endoftext|>", eos_token="<|endoftext|>")


@pytest.fixture(scope="module")
def windows(tokenizer: Any) -> torch.Tensor:
    """Windows `[window, position]` of the text, each from the start of a sentence."""
    ids = [token for line in TEXT for token in (0, *tokenizer.encode(line))]
    starts = [place for place, token in enumerate(ids) if token == 0 and place + WINDOW <= len(ids)]
    return torch.tensor([ids[place : place + WINDOW] for place in starts])


@pytest.fixture(scope="module")
def ungated(windows: torch.Tensor, tokenizer: Any) -> dict[str, Any]:
    return models_of(UNGATED, windows, rows=len(tokenizer))


def atlas_of(model: LanguageModel | str, folder: Path, name: str) -> Path:
    return mine(model, folder / "text.txt", out=folder / name, validation=folder / "validation.txt", **MINED).path


@pytest.mark.full
@pytest.mark.parametrize("layouts", [UNGATED, GATED], ids=["ungated", "gated"])
def test_one_function_in_several_layouts_has_one_atlas(
    layouts: tuple[Layout, ...], folder: Path, tokenizer: Any, windows: torch.Tensor, request: pytest.FixtureRequest
) -> None:
    """From a folder, as users load models; that the functions are equal is checked first, or the rest says nothing."""
    ungated = layouts is UNGATED
    models = request.getfixturevalue("ungated") if ungated else models_of(layouts, windows, rows=len(tokenizer))
    logits, atlases = [], []
    for kind, model in models.items():
        logits.append(model(input_ids=windows[:64]).logits)
        model.save_pretrained(folder / kind)
        tokenizer.save_pretrained(folder / kind)
        atlases.append(atlas_of(str(folder / kind), folder, f"{kind}-atlas"))
    own = torch.nn.functional.cross_entropy(logits[0][:, :-1].flatten(0, 1), windows[:64, 1:].flatten())
    assert own < 2.0, "nothing was learned, so nothing is told apart from noise"
    for other in logits[1:]:
        torch.testing.assert_close(other, logits[0], rtol=0, atol=2e-5)
    assert len(atlases) == 4
    for atlas in atlases[1:]:
        assert_equal_atlases(atlases[0], atlas)
    manifests = [open_atlas(atlas).manifest["model"] for atlas in atlases]
    assert [manifest["family"] for manifest in manifests] == list(models)
    assert {(manifest["block"], manifest["gated"]) for manifest in manifests} == {("pre-norm", not ungated)}


def with_keys_scaled(model: Any, factor: torch.Tensor) -> Any:
    """A copy of a GPT-2 with every memory's key and key bias times its `factor [memory]`, and its value over it."""
    scaled = copy.deepcopy(model)
    for block in scaled.transformer.h:
        block.mlp.c_fc.weight *= factor
        block.mlp.c_fc.bias *= factor
        block.mlp.c_proj.weight /= factor[:, None]
    return scaled


SCALED = {
    "triggers": ("coefficient",),
    "activity": ("min", "max"),
    "values": ("key_norm",),
    "removals": ("coefficient", "removed_coefficient"),
}
"""What is times a to the bit, by table."""
OTHERWISE = {
    "activity": ("mean", "std", "histogram"),
    "values": ("value_norm", *(f"{side}_scores" for side in ("top", "bottom")), *BARE_VALUE),
}
"""What changes in another way. Everything else is the same to the bit."""


@pytest.mark.full
def test_a_relu_key_times_a_and_its_value_over_a_change_nothing_but_the_bare_value(
    folder: Path, tokenizer: Any, ungated: dict[str, Any]
) -> None:
    """Powers of two, so that the network computes the same to the bit; a third of the memories stay as they are."""
    factor = 2.0 ** (torch.arange(MEMORIES) % 3)
    one, other = (
        atlas_of(load_model(model, tokenizer=tokenizer), folder, name)
        for name, model in (("relu", ungated["gpt2"]), ("relu-scaled", with_keys_scaled(ungated["gpt2"], factor)))
    )
    paths = list(tables_of(one))
    assert paths == list(tables_of(other))
    a = factor.numpy()
    for path in paths:
        x, y = pl.read_parquet(one / path), pl.read_parquet(other / path)
        table = path.split("/")[0].removesuffix(".parquet")
        scaled = SCALED.get(table, ())
        moved = (*scaled, *OTHERWISE.get(table, ()))
        assert x.height > 0
        assert x.drop(moved).equals(y.drop(moved)), path
        for name in scaled:
            assert (x[name].to_numpy() * a[x["memory"]] == y[name].to_numpy()).all(), f"{path}: {name}"
        if table == "activity":
            for name in ("mean", "std"):
                np.testing.assert_allclose(y[name], x[name] * a, rtol=1e-6, atol=1e-9)
        if table == "values":
            assert (y["value_norm"].to_numpy() * a == x["value_norm"].to_numpy()).all()
            for name in ("top_scores", "bottom_scores"):
                wide = [np.array(scores.to_list()) for scores in (x[name], y[name])]
                assert (wide[1] * a[:, None] == wide[0]).all(), f"{path}: {name}"
            for name in ("working_logit", "working_probability"):
                assert x[name].is_not_null().sum() > MEMORIES / 2
            for name in BARE_VALUE:
                same = x[name].eq_missing(y[name]).to_numpy()
                assert same[a == 1].all(), f"{path}: {name}"
                assert not (same & x[name].is_not_null().to_numpy())[a > 1].any(), f"{path}: {name}"
    # What the last four need is not made.
    for question in set(QUESTIONS) - {"value_confidence", "lenses", "memorised", "width", "importance"}:
        x, y = (answer(atlas, question).filter(pl.col("name") != "log_probability_gain") for atlas in (one, other))
        assert x.height > 0
        assert x.equals(y), question
