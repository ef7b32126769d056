"""Forwards of token trees: the coefficients of sentences run one by one, and nothing computed that nobody asks for."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mnemoscope.models import LanguageModel, load_model
from mnemoscope.models.feed_forward import DenseFeedForward
from mnemoscope.models.hooks import read_coefficients
from mnemoscope.models.token_trees import Branch, TokenRow, Tree
from mnemoscope.models.tree_forward import TreeForward, _Steps
from models.conftest import CASES, CONTEXT, LAYERS, ROWS, build
from models.expert_models import MIXTURES, build_mixture
from models.uncommon_models import UNCOMMON, build_uncommon

OTHERWISE = {
    "gpt_neo": "a window of 4 tokens",
    "gptj": "attention of its own",
    "codegen": "attention of its own",
    "bloom": "distances in its mask",
    "bloom-normed-stream": "distances in its mask",
    "falcon-rw": "distances in its mask",
    "gemma2": "scores that are capped",
    "recurrent_gemma": "a recurrence beside attention",
    "rwkv": "no attention",
}
"""Families whose tokens do not depend on those before them by plain attention alone."""


def build_any(name: str) -> Any:
    return (build_uncommon if name in UNCOMMON else build)(name)


def grow(seed: int, *, trees: int = 3) -> list[Tree]:
    """Trees of random tokens, of which the first begins with a branch."""
    random = np.random.default_rng(seed)

    def tokens(most: int) -> Any:
        return random.integers(0, ROWS, int(random.integers(1, most)))

    grown = [Tree(tokens(2)[:0], [Branch(0, tokens(8))])]
    for _ in range(trees):
        trunk = tokens(20)
        grown.append(Tree(trunk, [Branch(int(random.integers(0, len(trunk) + 1)), tokens(12)) for _ in range(3)]))
    return grown


def draw(row: TokenRow, seed: int, *, layers: int) -> dict[int, Any]:
    """Some tokens for some of the layers."""
    random = np.random.default_rng(seed)
    asked = {layer: np.flatnonzero(random.random(len(row)) < 0.2) for layer in range(layers)}
    return {layer: tokens for layer, tokens in asked.items() if len(tokens)}


def one_by_one(model: LanguageModel, trees: list[Tree]) -> dict[int, Tensor]:
    """The coefficients `[token, memory]` of all layers, each sentence in a forward of its own."""
    found: dict[int, list[Tensor]] = {layer: [] for layer in range(model.sizes.layers)}
    for tree in trees:
        for branch in (Branch(0, tree.trunk), *tree.branches):
            ids = torch.from_numpy(np.concatenate([tree.trunk[: branch.after], branch.tokens]))[None]
            if not len(branch.tokens):
                continue

            def keep(layer: int, coefficients: Tensor, after: int = branch.after) -> None:
                found[layer].append(coefficients[0, after:].clone())

            with torch.inference_mode(), read_coefficients(model, keep, own_thread=True):
                model.backbone(ids)
    return {layer: torch.cat(each) for layer, each in found.items()}


def check(model: LanguageModel, forward: TreeForward, seed: int) -> None:
    trees = grow(seed)
    row = TokenRow(trees)
    asked = draw(row, seed, layers=model.sizes.layers)
    wanted, read = one_by_one(model, trees), set[int]()

    def compare(layer: int, found: Tensor) -> None:
        read.add(layer)
        torch.testing.assert_close(found, wanted[layer][asked[layer]], rtol=2e-4, atol=2e-5)

    forward.run(row, asked, compare)
    assert read == set(asked)


@pytest.mark.parametrize("name", [*CASES, *UNCOMMON])
def test_equals_sentences_one_by_one_wherever_it_is_possible(name: str, tokenizer: Any) -> None:
    model = load_model(build_any(name), tokenizer=tokenizer)
    forward = TreeForward(model, longest=32)
    assert forward.possible == (name not in OTHERWISE), OTHERWISE.get(name)
    for seed in range(4 if forward.possible else 0):
        check(model, forward, seed)


@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures_of_experts(name: str, tokenizer: Any) -> None:
    model = load_model(build_mixture(name, rows=ROWS), tokenizer=tokenizer)
    forward = TreeForward(model, longest=32)
    for seed in range(2 if forward.possible else 0):
        check(model, forward, seed)
    if name == "mixtral":
        assert forward.possible


@pytest.mark.parametrize(("longest", "possible"), [(7, False), (8, True), (2048, True), (2049, False)])
def test_sentences_too_short_or_too_long_are_left_to_others(longest: int, possible: bool, tokenizer: Any) -> None:
    model = load_model(build("llama", max_position_embeddings=4096), tokenizer=tokenizer)
    assert TreeForward(model, longest=longest).possible is possible


@pytest.mark.parametrize(("longest", "possible"), [(16, True), (17, False)])
def test_a_window_is_no_hindrance_to_sentences_that_it_holds(longest: int, possible: bool, tokenizer: Any) -> None:
    model = load_model(build("mistral", sliding_window=16), tokenizer=tokenizer)
    assert TreeForward(model, longest=longest).possible is possible


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes(dtype: torch.dtype, tokenizer: Any) -> None:
    """Half precision is held to what it can hold."""
    model = load_model(build("llama").to(dtype), tokenizer=tokenizer)
    forward = TreeForward(model, longest=32)
    assert forward.possible
    trees = grow(0)
    row = TokenRow(trees)
    wanted = one_by_one(model, trees)
    everywhere = {layer: np.arange(len(row)) for layer in range(LAYERS)}
    limit = 1e-9 if dtype == torch.float64 else 0.08

    def compare(layer: int, found: Tensor) -> None:
        assert found.dtype == dtype
        gap = (found - wanted[layer]).abs().max() / wanted[layer].square().mean().sqrt()
        assert float(gap) < limit

    forward.run(row, everywhere, compare)


def test_a_model_without_positions_of_its_own_is_refused(tokenizer: Any) -> None:
    """Positions that are counted, not told, would be those in the row."""
    hf = build("gpt2")
    model = load_model(hf, tokenizer=tokenizer)
    model.usage = None  # and is not read anew
    inner = hf.transformer.forward
    hf.transformer.forward = lambda input_ids, use_cache=None: inner(input_ids, use_cache=use_cache)
    assert not TreeForward(model, longest=32).possible


def test_attention_that_goes_elsewhere_is_refused(tokenizer: Any) -> None:
    model = load_model(build("llama", attn_implementation="eager"), tokenizer=tokenizer)
    assert not TreeForward(model, longest=32).possible


def test_blocks_compute_only_what_something_depends_on(tokenizer: Any) -> None:
    """Of two layers' rows: what is asked of the first alone is no longer there in the second, nor computed after."""
    hf = build("gpt2")
    model = load_model(hf, tokenizer=tokenizer)
    forward = TreeForward(model, longest=32)
    row = TokenRow([Tree(np.arange(10), [Branch(4, np.arange(20, 23))]), Tree(np.arange(30, 36))])
    seen: dict[str, int] = {}

    def count(name: str, module: Any) -> Any:
        return module.register_forward_hook(lambda *given: seen.update({name: given[-1].shape[-2]}))

    first, second = hf.transformer.h
    hooks = [
        *(count(f"attention {n}", block.attn.c_attn) for n, block in enumerate((first, second))),
        *(count(f"keys {n}", block.mlp.c_fc) for n, block in enumerate((first, second))),
        count("values 0", first.mlp.c_proj),
    ]
    found: dict[int, Tensor] = {}
    # Token 15 is the third of the second tree, 11 the second of the branch, whose beginning are tokens 0 to 3.
    forward.run(row, {0: np.array([11, 15]), 1: np.array([11])}, lambda layer, rows: found.update({layer: rows}))
    for hook in hooks:
        hook.remove()
    # Layer 0: six tokens for the branch, three for the second tree, of which only the last is asked for its memories.
    assert seen == {"attention 0": 9, "keys 0": 7, "values 0": 7, "attention 1": 6, "keys 1": 1}
    assert {layer: tuple(rows.shape) for layer, rows in found.items()} == {
        0: (2, model.sizes.memories[0]), 1: (1, model.sizes.memories[1]),
    }  # fmt: skip
    assert isinstance(model.layer(0).ffn, DenseFeedForward)


def test_side_by_side_and_beside_other_forwards(tokenizer: Any) -> None:
    """What threads run at once is what they run alone, and a plain forward beside them is not touched."""
    model = load_model(build("llama"), tokenizer=tokenizer)
    forward = TreeForward(model, longest=CONTEXT)
    ids = torch.arange(24)[None]
    plain = model.logits(ids)

    def work(seed: int) -> bool:
        if seed % 3 == 2:
            return torch.equal(model.logits(ids), plain)
        check(model, forward, seed)
        return True

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(work, range(24)))
    assert torch.equal(model.logits(ids), plain)


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "llama", "gemma3"])
def test_no_mask_as_large_as_the_square_of_a_row_is_made(
    name: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions that start anew would be taken for packed sentences, and masked in one square of the whole row."""
    model = load_model(build(name), tokenizer=tokenizer)
    forward, given, attend = TreeForward(model, longest=32), list[int](), _Steps.attend

    def note(steps: _Steps, *tensors: Tensor, attn_mask: Tensor | None = None, **rest: Any) -> Tensor:
        given.append(0 if attn_mask is None else attn_mask.numel())
        return attend(steps, *tensors, attn_mask=attn_mask, **rest)

    monkeypatch.setattr(_Steps, "attend", note)
    check(model, forward, 0)
    assert given == [1] * LAYERS


def test_hooks_go_even_where_the_reader_fails(tokenizer: Any) -> None:
    model = load_model(build("gpt2"), tokenizer=tokenizer)
    forward = TreeForward(model, longest=32)
    before = [len(module._forward_pre_hooks) + len(module._forward_hooks) for module in model.anatomy.model.modules()]

    def fail(layer: int, found: Tensor) -> None:
        raise KeyError(layer)

    with pytest.raises(KeyError):
        forward.run(TokenRow(grow(0)), {1: np.array([3])}, fail)
    after = [len(module._forward_pre_hooks) + len(module._forward_hooks) for module in model.anatomy.model.modules()]
    assert after == before
    check(model, forward, 1)
