"""Which memories matter at all: how much each one moves the model's prediction over the validation prefixes.

Makes `importance` (definitions.md section 8). F is the logit of the model's top token less that of its runner-up; the
direct effect on F and the attribution of every memory at the prefix's last position (section 9, attribute) are summed
by memory, exactly in any order. The 20 largest of a prefix are those of the whole network, mined layers or not.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from mnemoscope.attribution.direct_effects import check_head
from mnemoscope.attribution.gradients import coefficient_gradients
from mnemoscope.foundation.budget import BUDGET, rows_within
from mnemoscope.mining.mining_run import MiningRun
from mnemoscope.mining.passes.prefix_pass import PrefixRows, check_finite, plan_prefixes, read_prefixes
from mnemoscope.mining.steps import Answers, empty_answers, is_unanswered
from mnemoscope.mining.text.exact_sums import ROWS, add_sums, exact_sum, value_of
from mnemoscope.mining.text.thread_team import ThreadTeam
from mnemoscope.models.forward.attention import eager_attention, find_attention, read_attention
from mnemoscope.models.readout.token_logits import TokenLogits
from mnemoscope.tracing import top
from mnemoscope.tracing.scoring.logit_parts import LogitSplitter, StreamParts
from mnemoscope.tracing.scoring.memory_effects import MemoryEffects, WrittenValues

KINDS = ("direct", "attribution")
LARGEST = 20
"""Memories of the network that count as the largest of a prefix."""


class ImportancePass:
    """Adds up both kinds of effect; needs `prefixes` and `sentences`. Raises ModelUnsupported for a head that is not
    one matrix, and for a network without a gradient.
    """

    def __init__(self, run: MiningRun) -> None:
        check_head(run.model)
        self._run, self._model = run, run.model
        self._sentence, position, self._final = read_prefixes(run, "sentence", "position", "final_top")
        self._attention = find_attention(run.model)
        self._logits, self._splitter = TokenLogits(run.model), LogitSplitter(run.model, self._attention)
        self._effects = MemoryEffects(run.model)
        self._firsts = np.concatenate([[0], np.cumsum(run.model.sizes.memories)])
        self.answers: Answers = {}
        """Of each piece, in one row: exact sums of sizes, and how often each is among the largest."""
        steps = plan_prefixes(
            run,
            self._sentence,
            position,
            self.read,
            self.answers,
            stage="importance",
            weights=BUDGET.weights,
            area=min(run.plan.batch_tokens, BUDGET.gradient_tokens),
            around=lambda: eager_attention(run.model),
        )
        # A step that runs out of memory is taken again in halves; a team may have added a part of it by then.
        self.steps = replace(steps, team=ThreadTeam(1))
        pieces, memories = len(steps.pieces), int(self._firsts[-1])
        self.answers["sums"] = empty_answers((pieces, ROWS, len(KINDS), memories), np.int64)
        self.answers["among"] = empty_answers((pieces, len(KINDS), memories), np.int64)

    def read(self, batch: PrefixRows) -> Answers:
        """Runs two forwards in `eager_attention`, one of them with gradients, and adds what it finds to the answers."""
        measured = []
        for kind, effects in zip(KINDS, self._measure(batch), strict=True):
            values = [effects[layer].double() for layer in range(self._model.sizes.layers)]
            for layer, of_layer in enumerate(values):
                check_finite(of_layer.numpy()[:, None], self._sentence[batch.prefixes], f"{kind} effects", [layer])
            measured.append(torch.cat(values, 1).abs())
        largest = [sizes.topk(min(LARGEST, sizes.shape[1]))[0][:, -1:] for sizes in measured]
        among = [((effects >= least) & (effects > 0)).sum(0) for effects, least in zip(measured, largest, strict=True)]
        sums = torch.stack([reduce(add_sums, map(exact_sum, sizes)) for sizes in measured], 1)
        before, counts = (self.answers[name][self.steps.piece_of(batch.items.start)] for name in ("sums", "among"))
        first = bool(is_unanswered(before).any())
        before[...] = (sums if first else add_sums(torch.from_numpy(before), sums)).numpy()
        counts[...] = torch.stack(among).numpy() + (0 if first else counts)
        return {}

    def _measure(self, batch: PrefixRows) -> tuple[Mapping[int, Tensor], Mapping[int, Tensor]]:
        """Direct effects and attributions `[row, memory]` by layer."""
        model = self._model
        parts = StreamParts(model, batch.at, watch=WrittenValues.of)
        with read_attention(model, self._attention, parts.note, own_thread=True):
            last = batch.run(model, parts.keep, range(model.sizes.layers)).to(model.device)
        target = torch.from_numpy(self._final[batch.prefixes])
        # The best token `[row]` that is not the model's top one.
        rows = rows_within(BUDGET.scores, model.sizes.vocabulary)
        every = (model.scores(part, projection="lens") for part in torch.split(last, rows))
        best = torch.cat([top(scores, 2)[0].cpu() for scores in every])
        against = torch.where(best[:, 0] == target, best[:, 1], best[:, 0])
        direct: dict[int, Tensor] = {}

        def see(layer: int, part: str, direction: Tensor) -> None:
            if part == "ffn":
                direct[layer] = self._effects.of_layer(layer, direction, parts.written[layer])[0].cpu()

        directions = self._logits.of_difference(last, target, against)
        self._splitter.split(directions, parts.embedding, parts.layers, last, see=see)

        def difference(final: Tensor) -> Tensor:
            (vectors, bias), (less, its_bias) = self._logits.side(target), self._logits.side(against)
            return self._logits.read(batch.at(final), vectors - less, bias - its_bias)

        gradients = coefficient_gradients(model, batch.ids, difference, columns=batch.column)
        return direct, {layer: coefficients * gradient for layer, (coefficients, gradient) in gradients.items()}

    def write(self) -> None:
        count, memories = len(self._final), int(self._firsts[-1])
        empty = torch.zeros(ROWS, len(KINDS), memories, dtype=torch.int64)
        means = value_of(reduce(add_sums, map(torch.from_numpy, self.answers["sums"]), empty)).numpy() / max(1, count)
        among = self.answers["among"].sum(0) / max(1, count)
        for layer in self._run.plan.layers:
            places = np.arange(*self._firsts[layer : layer + 2]) if count else np.arange(0)
            columns = {"memory": places - self._firsts[layer], "prefixes": np.full(len(places), count)}
            for number, kind in enumerate(KINDS):
                columns |= {kind: means[number, places], f"{kind}_among_{LARGEST}": among[number, places]}
            self._run.write("importance", columns, layer)
