"""Which input words each key detects, whether its triggers end with one of them, and whether a memory's value adds to
what its key reads or takes it away. Makes `roles`.

The value pass at the layer's other end (definitions.md section 9, key_agreement): the centred cosine of a memory's read
direction with the embedding of every token. One control uses another memory's triggers, another the key with shuffled
entries (key_triggers.py). Of the layer's other end (section 9, input_output) the cosines of key and value are taken
from weights alone, also where no embeddings are known; a control pairs a key with another memory's value.
"""

from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from mnemoscope.atlas.features import IN_AND_OUT
from mnemoscope.atlas.read import BEST_TRIGGERS
from mnemoscope.errors import ModelUnsupported, NotFinite
from mnemoscope.foundation.budget import BUDGET, rows_within
from mnemoscope.mining.mining_run import MiningRun
from mnemoscope.mining.passes.vectors.key_triggers import KeyTriggers
from mnemoscope.mining.passes.vectors.projector import Columns, Projector, Share, join_columns
from mnemoscope.mining.text.batches import Ints
from mnemoscope.mining.text.circle import deal
from mnemoscope.models import LanguageModel
from mnemoscope.models.modules.projections import LinearHead
from mnemoscope.models.readout.read_directions import folded_keys, input_embeddings, read_directions
from mnemoscope.tracing import rank_tokens

KEPT = BEST_TRIGGERS
"""Top tokens kept of each key, and triggers that are looked for among them."""
PAIRS, TAIL = 10_000, 0.0025
"""Pairs of a key and another memory's value, and the share of them on either side that is beyond a threshold."""
_TINY = 1e-30


def write_layer_roles(run: MiningRun, layer: int) -> None:
    """Writes `roles` of one layer; needs its triggers."""
    triggers = KeyTriggers(run.model, run.directory, run.plan)
    roles = run.keep(RolePass, lambda: RolePass(run.model, input_embeddings(run.model), triggers, run.plan.seed))
    run.write("roles", roles.columns(layer, *last_tokens(run, layer)), layer)


def last_tokens(run: MiningRun, layer: int) -> tuple[Ints, Ints]:
    """The last tokens `[memory, KEPT]` of the best positive triggers (-1: fewer), and another memory's as control."""
    triggers = run.read("triggers", ("memory", "sign", "rank", "token"), layer)
    best = triggers.filter(pl.col("sign") == 1, pl.col("rank") < KEPT)
    tokens = np.full((run.model.sizes.memories[layer], KEPT), -1, np.int64)
    tokens[best["memory"].to_numpy(), best["rank"].to_numpy()] = best["token"].to_numpy()
    return tokens, deal(tokens, run.plan.seed, 9, layer)


class RolePass:
    """Compares a model's keys with words, `embeddings [token, hidden]`. Directions and room for cosines are made once
    per device. Without `triggers` the columns of shuffled keys are null. `seed` is that of pairs of key and value.
    """

    def __init__(
        self, model: LanguageModel, embeddings: Tensor | None, triggers: KeyTriggers | None = None, seed: int = 0
    ) -> None:
        self.model, self._triggers, self._seed = model, triggers, seed
        self._directions: Tensor | None = None
        if embeddings is not None:
            centred = embeddings - embeddings.mean(1, keepdim=True)
            self._directions = normalize(centred, dim=1, eps=_TINY, out=centred)
        self._projectors: dict[torch.device, Projector] = {}

    def columns(self, layer: int, tokens: Ints, dealt: Ints) -> dict[str, Any]:
        """The columns of `roles`; `dealt` is the control. Without embeddings those of words are null."""
        model, device = self.model, self.model.devices[layer]
        if self._directions is not None and device not in self._projectors:
            words = self._directions.to(device)
            self._projectors[device] = Projector(LinearHead(words), len(words), device=device)
        projector = self._projectors.get(device)
        memories = model.sizes.memories[layer]
        columns: dict[str, Any] = {"memory": np.arange(memories, dtype=np.int32)}
        columns |= input_output(model, layer, seed=self._seed)
        if projector is None:
            columns |= {name: [[] for _ in range(memories)] for name in ("key_top_tokens", "key_top_cosines")}
            return columns | {name: np.ma.array(np.zeros(memories, kind), mask=True) for name, kind in _NUMBERS.items()}
        directions = normalize(read_directions(model, layer), dim=1, eps=_TINY)
        on_text = None if self._triggers is None else self._triggers.of(layer)
        of_keys = None if on_text is None else on_text[0]
        readings = join_columns(projector.read_all(directions, partial(read_cosines, (tokens, dealt), on_text=of_keys)))
        if not np.isfinite(readings["key_top_cosines"]).all():
            memory = int(np.flatnonzero(~np.isfinite(readings["key_top_cosines"]).all(1))[0])
            raise NotFinite(f"the key of {model.numbering(layer).name(layer, memory)} is not finite; check the weights")
        columns |= {name: list(readings.pop(name)) for name in ("key_top_tokens", "key_top_cosines")}
        if self._triggers is None or on_text is None:
            for name in _ON_TEXT:
                readings |= {name: np.zeros(memories, np.int32), f"{name} unknown": np.ones(memories, np.bool_)}
        else:
            shuffled = read_directions(model, layer, order=torch.from_numpy(self._triggers.shuffle(layer)))
            shuffled = normalize(shuffled, dim=1, eps=_TINY)
            readings |= join_columns(projector.read_all(shuffled, partial(_rank, _ON_TEXT[1], on_text[1])))
        return columns | {name: np.ma.array(readings[name], mask=readings[f"{name} unknown"]) for name in _NUMBERS}


_ON_TEXT = ("text_rank", "shuffled_rank")
"""The ranks, under keys and shuffled keys, of the token that activates them most on a little text."""
_NUMBERS: dict[str, type] = {
    "trigger_token": np.int32,
    "trigger_rank": np.int32,
    "trigger_cosine": np.float32,
    "triggers_found": np.float32,
    "control_token": np.int32,
    "control_rank": np.int32,
    "control_cosine": np.float32,
    "controls_found": np.float32,
    **dict.fromkeys(_ON_TEXT, np.int32),
}
"""Columns that are null if the memory has no positive trigger."""


def input_output(model: LanguageModel, layer: int, *, seed: int) -> dict[str, Any]:
    """The cosines of each memory's keys with its value and with each other, in the stream, and the thresholds beyond
    which it adds or removes: quantiles over pairs of the layer, or of the expert. Null where keys cannot be read, and
    of a vector of zeros.
    """
    numbering = model.numbering(layer)
    columns = {name: np.full(numbering.count, np.nan, np.float32) for name in IN_AND_OUT}
    with suppress(ModelUnsupported):
        directions = [*folded_keys(model, layer), model.values_in_stream(layer)]
        *keys, value = (normalize(each.to(directions[0].device), dim=1, eps=_TINY) for each in directions)
        del directions
        gated = [("up_value", (keys[-1], value)), ("gate_value", (keys[0], value)), ("gate_up", (keys[0], keys[-1]))]
        named = gated if len(keys) > 1 else [("key_value", (keys[0], value))]
        for name, pair in named:
            known = pair[0].any(1) & pair[1].any(1)
            columns[name] = torch.einsum("ij,ij->i", *pair).masked_fill(~known, torch.nan).cpu().numpy()
        for expert, (first, width) in enumerate(zip(numbering.firsts, numbering.widths, strict=True)):
            places = first + np.flatnonzero(np.isfinite(columns[named[0][0]][first : first + width]))
            if len(places) > 1:
                drawn = _pair_cosines(keys[-1], value, places, np.random.default_rng((seed, 18, layer, expert)))
                for name, level in (("removes_below", TAIL), ("adds_above", 1 - TAIL)):
                    columns[name][first : first + width] = np.quantile(drawn, level, method="weibull")
    return {name: np.ma.masked_invalid(column) for name, column in columns.items()}


def _pair_cosines(keys: Tensor, values: Tensor, places: Ints, random: np.random.Generator) -> NDArray[np.float32]:
    """The cosines of unit vectors: of a random memory's key among `places`, and the value of another one."""
    one = random.integers(len(places), size=PAIRS)
    other = (one + random.integers(1, len(places), size=PAIRS)) % len(places)
    pairs = torch.from_numpy(places[np.stack([one, other])]).to(keys.device)
    parts = torch.split(pairs, rows_within(BUDGET.cosines, keys.shape[1]), dim=1)
    return torch.cat([torch.einsum("ij,ij->i", keys[key], values[value]) for key, value in parts]).cpu().numpy()


def _rank(name: str, wanted: Ints, share: Share) -> Columns:
    """The ranks of the wanted tokens `[memory]` under some keys, from cosines `[memory, token]`."""
    tokens = torch.from_numpy(wanted[share.vectors]).to(share.scores.device)
    with torch.inference_mode():
        ranks = rank_tokens(share.scores, best=1, of=[tokens]).ranks[0].int().cpu().numpy()
    return {name: ranks, f"{name} unknown": np.zeros(len(ranks), np.bool_)}


def read_cosines(triggers: tuple[Ints, Ints], share: Share, *, on_text: Ints | None = None) -> Columns:
    """The columns of some memories, from cosines `[memory, token]`; `triggers` are their own and the control's, and
    `on_text` the token that activates each key most on a little text. Under a key of zeros every token ties, and the
    lower id comes first.
    """
    cosines = share.scores
    with torch.inference_mode():
        last = [torch.from_numpy(each[share.vectors]).to(cosines.device) for each in triggers]
        first = [there[:, 0].clamp(min=0) for there in last]
        wanted = [] if on_text is None else [torch.from_numpy(on_text[share.vectors]).to(cosines.device)]
        ranking = rank_tokens(cosines, best=KEPT, of=[*first, *wanted])
        tokens, best = ranking.best
        columns: Columns = {
            "key_top_tokens": tokens.int().cpu().numpy(),
            "key_top_cosines": best.cpu().numpy(),
        }
        for rank in ranking.ranks[2:]:
            columns[_ON_TEXT[0]] = rank.int().cpu().numpy()
            columns[f"{_ON_TEXT[0]} unknown"] = np.zeros(len(rank), np.bool_)
        for one, there, rank in zip(("trigger", "control"), last, ranking.ranks[:2], strict=True):
            among = ((there[:, :, None] == tokens[:, None, :]).any(2) & (there >= 0)).sum(1)
            numbers = {
                f"{one}_token": there[:, 0],
                f"{one}_rank": rank,
                f"{one}_cosine": cosines.gather(1, there[:, :1].clamp(min=0))[:, 0],
                f"{one}s_found": among / (there >= 0).sum(1).clamp(min=1),
            }
            for name, values in numbers.items():
                columns[name] = values.cpu().numpy().astype(_NUMBERS[name])
                columns[f"{name} unknown"] = (there[:, 0] < 0).cpu().numpy()
    return columns
