"""A trace checked place by place against a slow model: every position its own run, every memory its own loop.

Shares no code with the package: the slow models of tests/mining (plain hooks, or plain sums), sorting and adding up.
"""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from torch import Tensor

from mining.reference_passes import probability, ranks, tie, tops
from mining.slow_model import Slow, SlowTransformer


class Changed:
    """A slow transformer with a few coefficients changed at absolute positions; its hooks stay until `close`."""

    def __init__(self, slow: SlowTransformer, changes: Sequence[tuple[int, int, str, float, int]]) -> None:
        """`changes` are (layer, memory, set|scale, value, first position)."""
        self.hooks = []
        for layer, memory, how, value, first in changes:

            def hook(
                _: Any, inputs: Any, memory: int = memory, how: str = how, value: float = value, first: int = first
            ) -> Any:
                found = inputs[0].clone()
                rows = found.reshape(-1, found.shape[-1])
                for column in range(len(rows)):
                    position = column - (slow.beginning is not None)
                    if position >= first:
                        rows[column, memory] = value if how == "set" else rows[column, memory] * value
                return (rows.reshape(found.shape),)

            self.hooks.append(slow.downs[layer].register_forward_pre_hook(hook))

    def close(self) -> None:
        for hook in self.hooks:
            hook.remove()


def near(found: float, expected: float, what: str) -> None:
    assert abs(found - expected) <= 3 * tie(expected), f"{what}: {found}, reference {expected}"


def check_guesses(found: list[dict[str, Any]], scores: Tensor, what: str) -> None:
    for rank, guess in enumerate(found):
        assert rank in ranks(scores, guess["id"]), (
            f"{what}: {guess} at rank {rank}, reference {ranks(scores, guess['id'])}"
        )
        near(guess["probability"], probability(scores, guess["id"]), f"{what}: {guess}")


def check_trace(found: dict[str, Any], slow: Slow, tokens: list[int], *, top: int, memories: int) -> None:
    """AssertionError where a number of `Trace.to_dict()` is not the slow model's."""
    assert [position["token"]["id"] for position in found["positions"]] == tokens
    assert len(found["layers"]) == slow.layers
    best: list[list[dict[str, set[int]]]] = []
    for j in range(len(tokens)):
        places, logits = slow.read(tokens[: j + 1])
        check_guesses(found["positions"][j]["prediction"], logits, f"position {j}")
        assert len(found["positions"][j]["prediction"]) == top
        best.append([])
        for layer, place in enumerate(places):
            row = found["layers"][layer]["positions"][j]
            what = f"layer {layer} position {j}"
            assert (row["layer"], row["position"]) == (layer, j)
            streams = {"residual": place.residual, "ffn": place.update, "output": place.output}
            scores = {name: slow.lens(stream) for name, stream in streams.items()}
            for name in streams:
                assert len(row[name]) == top
                check_guesses(row[name], scores[name], f"{what} {name}")
            best[-1].append({name: tops(scores[name]) for name in streams})
            if all(len(one) == 1 for one in best[-1][-1].values()):
                assert row["event"] == event(*(next(iter(best[-1][-1][name])) for name in streams)), what
            assert row["ffn_vote"]["id"] in tops(slow.update_scores(layer, place.update)), what
            check_memories(row, slow, layer, place.coefficients.tolist(), memories, what)
        check_decisions(found["positions"][j], best[-1], tops(logits))


def event(residual: int, ffn: int, output: int) -> str:
    names = {(True, True): "agreement", (True, False): "residual", (False, True): "ffn", (False, False): "composition"}
    return names[output == residual, output == ffn]


def check_memories(row: dict[str, Any], slow: Slow, layer: int, m: list[float], count: int, what: str) -> None:
    values = slow.values(layer)
    c = [abs(m_i) * math.sqrt(sum(x * x for x in value)) for m_i, value in zip(m, values.tolist(), strict=True)]
    total = sum(c)
    order = sorted(range(len(c)), key=lambda i: (-c[i], i))[:count]
    shown = [i for i in order if c[i] > 0]
    near(row["top_share"], max(c) / total if total else 0.0, f"{what} top_share")
    near(row["effective"], total**2 / sum(x * x for x in c) if total else 0.0, f"{what} effective")
    sums = list(accumulate(sorted(c, reverse=True)))
    least, most = (sum(x < share * total for x in sums) + bool(total) for share in (0.9 - 1e-5, 0.9 + 1e-5))
    assert least <= row["major"] <= most, f"{what} major"
    assert row["active"] in range(sum(x > 1e-5 for x in m), sum(x > -1e-5 for x in m) + 1)
    assert len(row["memories"]) == len(shown), what
    for one, expected in zip(row["memories"], shown, strict=True):
        name = f"{what} {one['memory']}"
        i = int(one["memory"].partition(".M")[2])
        assert one["memory"] == f"L{layer}.M{i}"
        assert i == expected or abs(c[i] - c[expected]) <= tie(c[expected]), f"{name}, reference M{expected}"
        near(one["coefficient"], m[i], name)
        near(one["contribution"], c[i], name)
        near(one["share"], c[i] / total, name)
        assert one["sign"] == (1 if m[i] > 0 else -1), name
        assert one["vote"]["id"] in tops(slow.value_scores(layer, one["sign"] * values[i])), name
        assert one["agrees"] == (one["vote"]["id"] == row["ffn_vote"]["id"])


def check_decisions(found: dict[str, Any], best: list[dict[str, set[int]]], final: set[int]) -> None:
    if len(final) > 1 or any(len(one) > 1 for layer in best for one in layer.values()):
        return
    for name in ("residual", "output"):
        right = [layer[name] == final for layer in best]
        first = next((layer for layer, is_right in enumerate(right) if is_right), None)
        decided = next((layer for layer in range(len(right)) if all(right[layer:])), None)
        assert found[name] == {"first": first, "decided": decided}


def ablated(slow: SlowTransformer, tokens: list[int], layer: int) -> Tensor:
    """The model's scores at the last position when one layer's memories are silent at the sentence's own positions."""
    down = slow.downs[layer]

    def silence(_: Any, inputs: Any, output: Tensor) -> Tensor:
        rows = output.clone().reshape(-1, output.shape[-1])
        first = int(slow.beginning is not None)
        rows[first:] = 0 if down.bias is None else down.bias
        return rows.reshape(output.shape)

    hook = down.register_forward_hook(silence)
    try:
        return slow.read(tokens)[1]
    finally:
        hook.remove()
