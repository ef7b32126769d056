"""SmolLM2-135M as strangers have it, a quantised GGUF from the package index: against plain transformers and hooks.

The reference opens the file by transformers alone, keeps what goes into two down-projections, and folds the final norm
into the values by hand; it shares no code with the package.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor

import mnemoscope as ms
from mnemoscope.atlas import Atlas, open_atlas
from web.served import client, patient

pytestmark = [pytest.mark.real, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]

LAYERS = (3, 24)
TOKENS = 2_000
PROMPT = "The committee decided that no more"
MEMORY, TOKEN = "L24.M917", " than"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's file; MNEMOSCOPE_MODELS names a folder where it stays."""
    folder = Path(os.environ.get("MNEMOSCOPE_MODELS") or tmp_path_factory.mktemp("models"))
    fetch = [sys.executable, str(ROOT / "runs" / "real_models.py"), "fetch", str(folder), "SmolLM2"]
    ran = subprocess.run(fetch, capture_output=True, text=True, check=False)
    if ran.returncode:
        pytest.skip(f"SmolLM2 cannot be had here: {ran.stderr.splitlines()[-1]}")
    return next(folder.glob("SmolLM2*.gguf"))


@pytest.fixture(scope="module")
def plain(file: Path) -> tuple[Any, Any]:
    """The network and the tokenizer by transformers alone."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    network = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    return network.eval(), AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)


@pytest.fixture(scope="module")
def model(file: Path) -> Any:
    return ms.load_model(str(file))


@pytest.fixture(scope="module")
def atlas(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Atlas:
    out = tmp_path_factory.mktemp("atlas") / "smollm2"
    ms.mine(
        model,
        "builtin:pydocs:stdlib",
        out=out,
        max_tokens=TOKENS,
        layers=LAYERS,
        prefixes=20,
        removals=0,
        neighbours=0,
        sample=0.2,
    )
    return open_atlas(out)


@contextmanager
def inputs_of(network: Any, layers: tuple[int, ...]) -> Iterator[dict[int, Tensor]]:
    """What goes into the down-projections of these layers, of the last forward."""
    seen: dict[int, Tensor] = {}

    def keep(layer: int) -> Any:
        return lambda _module, given: seen.__setitem__(layer, given[0].detach()[0])

    hooks = [network.model.layers[layer].mlp.down_proj.register_forward_pre_hook(keep(layer)) for layer in layers]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def read(network: Any, tokens: list[int], beginning: int | None) -> Any:
    with torch.no_grad():
        return network(torch.tensor([[*([] if beginning is None else [beginning]), *tokens]])).logits[0]


def test_the_proof_holds(model: Any) -> None:
    for check in ("residual", "ablation", "keys", "scores"):
        assert getattr(model.proof, check) <= 1e-4, check


def test_triggers_are_those_of_plain_hooks(atlas: Atlas, plain: tuple[Any, Any]) -> None:
    network, _ = plain
    beginning = atlas.manifest.model.beginning.token
    skipped = 0 if beginning is None else 1
    found: dict[int, dict[tuple[int, int], float]] = {layer: {} for layer in LAYERS}
    best: dict[int, list[Tensor]] = {layer: [] for layer in LAYERS}
    numbers: list[int] = []
    rows = atlas.table("sentences").filter(~pl.col("held_out"))
    named = pl.concat([atlas.table("triggers", layer=layer) for layer in LAYERS])["sentence"].unique()
    assert set(named) <= set(rows["sentence"])
    with inputs_of(network, LAYERS) as seen:
        for sentence, tokens in rows.select("sentence", "tokens").iter_rows():
            read(network, tokens, beginning)
            numbers.append(sentence)
            for layer in LAYERS:
                own = seen[layer][skipped:] if skipped else seen[layer][1:]
                best[layer].append(own.amax(0))
    assert len(numbers) > 20
    for layer in LAYERS:
        ranked = torch.stack(best[layer]).sort(0, descending=True).values.numpy()
        triggers = atlas.best_triggers(layer, None)
        assert triggers["memory"].n_unique() > 1_500
        for (memory,), own in triggers.partition_by("memory", as_dict=True).items():
            stored = own.sort("rank")["coefficient"].to_numpy()
            expected = ranked[: len(stored), int(memory)]
            assert np.all(np.abs(stored - expected) <= 1e-4 * np.maximum(1, np.abs(expected))), (layer, memory)
            found[layer] |= {(int(memory), int(rank)): value for rank, value in enumerate(stored)}
    assert min(map(len, found.values())) > 20_000


def test_values_are_the_rows_under_the_final_norm_s_gain(atlas: Atlas, plain: tuple[Any, Any]) -> None:
    network, _ = plain
    gain, head = network.model.norm.weight.detach().double(), network.lm_head.weight.detach().double()
    for layer in LAYERS:
        values = network.model.layers[layer].mlp.down_proj.weight.detach().double().T
        rows = atlas.table("values", layer=layer).sort("memory")
        for start in range(0, 300, 100):
            scores = (values[start : start + 100] * gain) @ head.T
            for end, own in (("top", scores), ("bottom", -scores)):
                ranked = own.topk(20, dim=1)
                stored = np.array(rows[f"{end}_scores"].to_list())[start : start + 100]
                assert np.abs(stored - ranked.values.numpy()).max() < 1e-3
                first = np.array(rows[f"{end}_tokens"].list.first())[start : start + 100]
                assert (first == ranked.indices[:, 0].numpy()).mean() > 0.98
            deviation = (scores - scores.mean(1, keepdim=True)).square().mean(1).sqrt()
            z = (scores.amax(1) - scores.mean(1)) / deviation
            assert np.abs(rows["top_z"].to_numpy()[start : start + 100] - z.numpy()).max() < 1e-3


def test_a_trace_and_an_ablation_are_those_of_plain_hooks(model: Any, plain: tuple[Any, Any]) -> None:
    network, tokenizer = plain
    tokens = tokenizer(PROMPT, add_special_tokens=False)["input_ids"]
    beginning = model.beginning.token
    logits = read(network, tokens, beginning)[-1]
    place = ms.trace(model, PROMPT).to_dict()["positions"][-1]
    assert place["prediction"][0]["id"] == int(logits.argmax())
    assert place["prediction"][0]["probability"] == pytest.approx(float(logits.softmax(0).max()), rel=1e-3)

    def silence(_module: Any, given: tuple[Tensor]) -> tuple[Tensor]:
        changed = given[0].clone()
        changed[..., 917] = 0
        return (changed,)

    hook = network.model.layers[24].mlp.down_proj.register_forward_pre_hook(silence)
    without = read(network, tokens, beginning)[-1]
    hook.remove()
    with ms.intervene(model, {MEMORY: 0.0}):
        changed = ms.trace(model, PROMPT).to_dict()["positions"][-1]
    assert changed["prediction"][0]["id"] == int(without.argmax())
    assert changed["prediction"][0]["probability"] == pytest.approx(float(without.softmax(0).max()), rel=1e-3)
    than = tokenizer(TOKEN, add_special_tokens=False)["input_ids"][0]
    assert float(logits.softmax(0)[than]) > float(without.softmax(0)[than])


def test_a_memory_that_says_than_is_labelled_so(atlas: Atlas) -> None:
    labels = dict(atlas[MEMORY].labels().select("sign", "label").iter_rows())
    assert f'promotes "{TOKEN}"' in labels[1]
    assert "promotes" not in labels[-1]


def test_a_page_of_each_kind(atlas: Atlas) -> None:
    reader = client(atlas.path)
    for address in ("/", "/layers", "/layers/24", f"/{MEMORY}", "/questions", "/tokens", "/search?q=module"):
        answer = patient(reader, address)
        assert answer.status_code == 200, address
    assert "than" in reader.get(f"/{MEMORY}").text
