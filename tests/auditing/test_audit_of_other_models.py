"""The audit of mixtures of experts and of two-level heads, against references that share nothing with the package."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mining.conftest import byte_tokenizer
from mnemoscope.auditing import audit
from mnemoscope.models import load_model
from models.checkpoints import KINDS, WORDS, args_of, weights_of, write
from models.checkpoints import Slow as SlowCheckpoint
from models.expert_models import EXPERTS, HIDDEN, MIXTURES, WIDTH, HandRead, blocks_of, build_mixture, inner_of

TEXT = "the cat 27"
NAMES = ("mixtral", "qwen2_moe", "deepseek_v3", "gpt_oss", "granitemoe", "gemma4")
"""Plain; a shared expert behind a switch; one without, and a dense layer; values in other layout; a scaled stream;
branches behind norms of their own, and a block that scales its stream."""


class SlowMixture:
    """A tiny mixture whose memories are switched off by clearing their values, one forward of its own for each."""

    def __init__(self, name: str) -> None:
        self.hf = build_mixture(name)
        self.case, self.hand = MIXTURES[name], HandRead(self.hf, name)

    @torch.no_grad()
    def log_probabilities(self, ids: list[int]) -> Tensor:
        """Of every token after the first, `[token]`."""
        scores = self.hf(input_ids=torch.tensor([ids])).logits[0, :-1].double().log_softmax(-1)
        return scores[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]

    def total(self, ids: list[int]) -> float:
        return float(self.log_probabilities(ids).sum())

    @contextmanager
    def without(self, *names: str) -> Iterator[None]:
        """The values of these memories are 0, which is what coefficients of 0 at every position are."""
        kept = {path: parameter.clone() for path, parameter in self.hf.named_parameters()}
        with torch.no_grad():
            for name in names:
                self._value(name).zero_()
        yield
        with torch.no_grad():
            for path, parameter in self.hf.named_parameters():
                parameter.copy_(kept[path])

    def _value(self, name: str) -> Tensor:
        """A view of the weights that are the memory's value."""
        layer, *expert, memory = (part[1:] for part in name.split("."))
        block, number = blocks_of(self.hf)[int(layer)], int(memory)
        if not expert:
            return block.get_submodule(self.case.whole).down_proj.weight[:, number]
        if ".S" in name:
            return block.get_submodule(f"{self.case.shared}.{self.case.down}").weight[:, number]
        return self.case.values(block.get_submodule(self.case.experts), int(expert[0]))[number]

    def names(self, layer: int) -> list[str]:
        """All memories of a layer, expert by expert."""
        if layer in self.case.dense:
            return [f"L{layer}.M{m}" for m in range(self.hand.widths(layer)[0])]
        found = [f"L{layer}.E{e}.M{m}" for e in range(EXPERTS) for m in range(WIDTH)]
        shared = self.hand.widths(layer)[EXPERTS:]
        return found + [f"L{layer}.S{s}.M{m}" for s, width in enumerate(shared) for m in range(width)]

    def direct_effects(self, ids: list[int]) -> dict[str, float]:
        """By memory, the gain of its tokens' logits through all norms, whose scales stay those of the run."""
        taken: dict[Any, Tensor] = {}
        hooks = [
            module.register_forward_pre_hook(lambda norm, args: taken.__setitem__(norm, args[0].reshape(-1, HIDDEN)))
            for module in self.hf.modules()
            if "RMSNorm" in type(module).__name__
        ]
        coefficients, _ = self.hand.read(ids)
        for hook in hooks:
            hook.remove()

        def back(directions: Tensor, norm: Any) -> Tensor:
            eps = norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps
            scale = (taken[norm].double().square().mean(-1, keepdim=True) + eps).sqrt()
            return directions * norm.weight.double() / scale[:-1]

        norm = inner_of(self.hf).get_submodule(self.case.final_norm)
        directions = back(self.hf.lm_head.weight[ids[1:]].double(), norm)
        directions = directions / getattr(self.hf.config, "logits_scaling", 1.0)
        directions = directions * getattr(self.hf.config, "residual_multiplier", 1.0)
        found = {}
        for layer, own in reversed(list(enumerate(coefficients))):
            block, values, edge = blocks_of(self.hf)[layer], self.hand.values(layer).double(), EXPERTS * WIDTH
            ways = [(directions, values)]
            if self.case.behind is not None:
                directions = directions * float(block.layer_scalar)
                inner = back(directions, block.post_feedforward_layernorm)
                parts = zip(self.case.behind, (values[:edge], values[edge:]), strict=True)
                ways = [(back(inner, block.get_submodule(path)), part) for path, part in parts]
            gains = torch.cat([way @ part.T for way, part in ways], dim=1)
            totals = (own[:-1].double() * gains).sum(0).tolist()
            found |= dict(zip(self.names(layer), totals, strict=True))
        return found


@pytest.mark.fast(2)
@pytest.mark.parametrize("name", NAMES)
def test_carriers_of_a_mixture_are_those_of_a_slow_loop(name: str) -> None:
    slow = SlowMixture(name)
    model = load_model(build_mixture(name), tokenizer=byte_tokenizer())
    assert model.reading.offset == 0  # clearing a value would reach a beginning token, too
    ids = model.encode([TEXT])[0]
    found = audit(model, [TEXT], alternatives=19, candidates=12, top=3).secrets[0]
    before = slow.total(ids)
    assert found.log_probability == pytest.approx(before, abs=1e-4)

    effects = slow.direct_effects(ids)
    assert len(effects) == sum(model.sizes.memories)
    by_name = {str(one.memory): one for one in found.memories}
    assert len(by_name) == 12
    for memory, one in by_name.items():
        assert one.direct == pytest.approx(effects[memory], abs=1e-4, rel=1e-3), memory
        with slow.without(memory):
            assert one.lost == pytest.approx(before - slow.total(ids), abs=1e-4), memory
    # None that was left out has a larger effect.
    assert (
        min(one.direct for one in found.memories)
        >= max(effect for memory, effect in effects.items() if memory not in by_name) - 1e-4
    )
    assert [one.lost for one in found.memories] == sorted((one.lost for one in found.memories), reverse=True)

    after = found.after
    assert after.memories == tuple(one.memory for one in found.memories if one.lost > 0)[:3]
    with slow.without(*map(str, after.memories)):
        assert after.log_probability == pytest.approx(slow.total(ids), abs=1e-4)
    assert slow.total(ids) == before


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", NAMES[:2])
def test_memories_of_every_kind_of_expert_are_switched_off(name: str) -> None:
    """All memories with an effect above 0, so that routed and shared experts are among them."""
    slow = SlowMixture(name)
    model = load_model(build_mixture(name), tokenizer=byte_tokenizer())
    ids = model.encode([TEXT])[0]
    found = audit(model, [TEXT], alternatives=19, candidates=400).secrets[0]
    positive = {memory for memory, effect in slow.direct_effects(ids).items() if effect > 1e-4}
    by_name = {str(one.memory): one for one in found.memories}
    assert positive <= set(by_name)
    assert {memory.split(".")[1][0] for memory in positive} == ({"E", "S"} if MIXTURES[name].shared else {"E"})
    before = slow.total(ids)
    for memory in sorted(positive)[::5]:
        with slow.without(memory):
            assert by_name[memory].lost == pytest.approx(before - slow.total(ids), abs=1e-4), memory


ADAPTIVE = [name for name, kind in KINDS.items() if kind.softmax_cutoffs is not None]


@pytest.mark.fast(2)
@pytest.mark.parametrize("name", ADAPTIVE)
def test_a_two_level_head_has_likelihoods_and_no_carriers(name: str, tmp_path: Path) -> None:
    args, weights = args_of(KINDS[name]), weights_of(KINDS[name])
    model, slow = load_model(write(tmp_path, args, weights)), SlowCheckpoint(args, weights)
    assert not model.linear_head
    texts = [" ".join(WORDS[start : start + 4]) for start in (0, 3, 7)]
    found = audit(model, texts, alternatives=19).secrets
    for text, one in zip(texts, found, strict=True):
        ids = [*model.beginning.tokens, *model.encode([text])[0]]
        scores = slow.scores(slow.hidden(ids)[0])
        asked = range(1, len(ids))
        assert one.log_probability == pytest.approx(float(sum(scores[k - 1, ids[k]] for k in asked)), abs=1e-4)
        half = one.tokens - one.tokens // 2
        best = [int(scores[k - 1].argmax()) == ids[k] for k in asked]
        assert (one.extractable, one.memories, one.after) == (all(best[-half:]), (), None)
        assert "no memory could be named" in str(audit(model, [text], alternatives=19))
