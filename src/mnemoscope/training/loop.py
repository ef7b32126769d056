"""The training loop. What a step reads depends on seed and step, so a checkpoint's step is its place in the text."""

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from mnemoscope.errors import TrainingError
from mnemoscope.foundation.files import replacing
from mnemoscope.foundation.options.mining_options import AUTO
from mnemoscope.foundation.progress import Checkpoints, Progress, report_to
from mnemoscope.models import device_of
from mnemoscope.training.export import export, held_out_loss, write_model
from mnemoscope.training.recipe import Recipe
from mnemoscope.training.text import Text, TextSource, TrainingData, check_folder, prepare_text, windows

CHUNK = 4_096
"""Positions whose scores are in memory at a time: 1 GB of them for a vocabulary of 65,536."""
EVALUATED_TOKENS = 100_000
"""Approximate tokens of each held-out text that a line of the log measures, of at most 400 documents."""


def train(
    out: str | os.PathLike[str],
    recipe: Recipe | None = None,
    *,
    wanted: TextSource | None = None,
    device: str = AUTO,
    checkpoint_every: float = 120.0,
    evaluate_every: int = 500,
    keep_checkpoints: int | None = None,
    say: Callable[[str], None] = print,
    progress: bool | Progress = True,
) -> Path:
    """Trains a model and returns its folder; continues from the last checkpoint in `out`.

    Args:
        out: The folder of the model and its checkpoints.
        recipe: A `mnemoscope.training.Recipe`; None: that of the built-in model.
        wanted: The text, a `TextSource`; None: the documentation on this machine.
        device: Such as cpu, cuda or cuda:1; auto: a graphics card if there is one.
        checkpoint_every: The most work that a sudden stop may lose, in seconds.
        evaluate_every: Steps between two lines of the log.
        keep_checkpoints: Keep every N-th step as a model folder of its own, `checkpoints/step-N`.
        say: Gets each line of the log.
        progress: True: a bar in a terminal or notebook; or a function of stage, done, total (or None) and note.
    """
    recipe = recipe or Recipe()
    directory = Path(out)
    check_folder(directory)
    text = prepare_text(recipe, directory / "text", say=say, wanted=wanted)
    run = TrainingState(recipe, device)
    saved = directory / "checkpoint.pt"
    run.load(saved)
    if run.step:
        say(f"going on from step {run.step}")
    started, first, average = time.monotonic(), run.step, None
    saving = Checkpoints(lambda: run.save(saved), every=checkpoint_every)
    with saving as checkpoints, report_to(progress) as report:
        while run.step < recipe.steps:
            loss = run.advance(text)
            average = loss if average is None else 0.98 * average + 0.02 * loss
            spent = time.monotonic() - started
            rate = (run.step - first) * recipe.batch * recipe.context / spent
            note = f"steps; loss {average:.3f} nats per token, {rate:,.0f} tokens/s"
            report("training", run.step, recipe.steps, note)
            if run.step % evaluate_every == 0 or run.step == recipe.steps:
                _log(directory, run, text, average, spent)
            if keep_checkpoints and run.step % keep_checkpoints == 0:
                write_model(run.model, text, recipe, directory / "checkpoints" / f"step-{run.step:06d}")
            if run.step == recipe.steps:
                run.save(saved)
            checkpoints.step_done(f"stopped at step {run.step} of {recipe.steps}; the same command goes on from there")
    return export(run.model, text, recipe, directory)


class TrainingState:
    def __init__(self, recipe: Recipe, device: str) -> None:
        self.recipe = recipe
        self.device = device_of(device)
        self.model: Any = recipe.model().to(self.device)
        self.terms = BalanceTerm(self.model, recipe.balance) if recipe.experts else MemoryTerms(self.model)
        named = list(self.model.named_parameters())
        matrices = [one for name, one in named if one.ndim >= 2 and "embed" not in name]  # experts' are stacked
        tables = [one for name, one in named if one.ndim >= 2 and "embed" in name]
        vectors = [one for _, one in named if one.ndim < 2]
        decay, rate = recipe.weight_decay, recipe.learning_rate
        groups: list[Any] = [
            {"params": tables, "weight_decay": decay},
            {"params": vectors, "weight_decay": 0.0},
            {"params": matrices, "weight_decay": decay, "lr": rate},
        ]
        self.optimiser = torch.optim.AdamW(groups, lr=recipe.embedding_rate, betas=(0.9, 0.95), fused=True)
        self.base_rates = [group["lr"] for group in self.optimiser.param_groups]
        self.step = 0
        # bfloat16 on a card, and on a CPU with AMX tiles, which torch 2.9 does not tell.
        capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
        self._half = self.device.type != "cpu" or bool(capabilities.get("amx_tile"))

    def advance(self, text: TrainingData) -> float:
        """One step; returns its loss in nats per token."""
        recipe = self.recipe
        batch = torch.from_numpy(windows(text.training, recipe, self.step)).to(self.device)
        inputs, targets = batch[:, :-1], batch[:, 1:]
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._half):
            hidden = self.model.base_model(inputs, use_cache=False).last_hidden_state
            parts = zip(*(torch.split(one, CHUNK) for one in (hidden.flatten(0, 1), targets.flatten())), strict=True)
            sums = [checkpoint(self._nats, *part, use_reentrant=False, preserve_rng_state=False) for part in parts]
        loss = torch.stack(sums).sum() / targets.numel()
        own = torch.isin(inputs, torch.tensor(text.between_sentences, device=self.device), invert=True)
        penalty = self.terms.penalty(
            own, sparsity=recipe.sparsity_at(self.step), free=recipe.free_memories, revival=recipe.revival
        )
        (loss + penalty).backward()  # type: ignore[no-untyped-call]
        for group, rate in zip(self.optimiser.param_groups, self.base_rates, strict=True):
            group["lr"] = rate * recipe.rate(self.step)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.step += 1
        if loss.isnan():
            raise TrainingError(f"the loss became NaN at step {self.step}; start again with a lower learning rate")
        return float(loss.detach())

    def _nats(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(self.model.get_output_embeddings()(hidden).float(), targets, reduction="sum")

    def save(self, path: Path) -> None:
        state = {
            "recipe": asdict(self.recipe),
            "step": self.step,
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
        }
        with replacing(path) as file:
            torch.save(state, file)

    def load(self, path: Path) -> None:
        if not path.is_file():
            return
        try:
            state: dict[str, Any] = torch.load(path, map_location=self.device, weights_only=True)
            begun = Recipe(**state["recipe"])
            if self.recipe.same_run(begun):
                self.model.load_state_dict(state["model"])
                self.optimiser.load_state_dict(state["optimiser"])
                self.step = int(state["step"])
        except Exception as error:  # any damage has the same remedy
            raise TrainingError(f"{path} is not a checkpoint that can be read; remove it to start again") from error
        if not self.recipe.same_run(begun):
            raise TrainingError(
                f"{path.parent} was begun with another recipe; choose another folder, or the same recipe"
            )


def _log(directory: Path, run: TrainingState, text: TrainingData, average: float, seconds: float) -> None:
    def loss(of: Text) -> float:
        most = min(400, max(1, int(np.searchsorted(of.documents, EVALUATED_TOKENS))))
        return round(held_out_loss(run.model, of, run.recipe.context, most=most).per_token, 4)

    line = {
        "step": run.step,
        "tokens": run.step * run.recipe.batch * run.recipe.context,
        "training_loss": round(average, 4),
        "held_out_loss": loss(text.held_out),
        **({} if text.validation is None else {"validation_loss": loss(text.validation)}),
        "seconds": round(seconds, 1),
    }
    with (directory / "log.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


_EPSILON = 1e-9
"""Added to both squares, so that a token at which no memory fires has the effective number 1."""


class MemoryTerms:
    def __init__(self, model: Any) -> None:
        self._values: list[nn.Linear] = []
        self._coefficients: dict[int, Tensor] = {}
        self._matches: dict[int, Tensor] = {}
        for layer, block in enumerate(model.gpt_neox.layers):
            self._values.append(block.mlp.dense_4h_to_h)
            block.mlp.dense_h_to_4h.register_forward_hook(_keep(self._matches, layer))
            block.mlp.dense_4h_to_h.register_forward_pre_hook(_keep(self._coefficients, layer))

    def penalty(self, text: Tensor, *, sparsity: float, free: float, revival: float) -> Tensor:
        """Of the last forward. `text [batch, position]` is True at a sentence's own tokens. `sparsity` is the last
        layer's weight, `free` the effective number without a penalty.
        """
        total, text = torch.zeros((), device=self._values[0].weight.device), text.flatten()
        shares = torch.linspace(0, 1, len(self._values)).tolist() if len(self._values) > 1 else [1.0]
        for layer, values in enumerate(self._values):
            coefficients, matches = self._coefficients.pop(layer), self._matches.pop(layer)
            if weight := sparsity * shares[layer]:
                effective = log_effective(coefficients, values.weight.norm(dim=0))
                total = total + weight * torch.relu(effective - math.log(free)).mean()
            if revival and text.any():
                total = total + revival * torch.relu(-matches.flatten(0, -2)[text].amax(0)).float().mean()
        return total


def _keep(kept: dict[int, Tensor], layer: int) -> Callable[..., None]:
    """A hook that stores a module's output or, as a pre-hook, its input."""

    def store(_: nn.Module, inputs: tuple[Tensor, ...], *outputs: Tensor) -> None:
        if torch.is_grad_enabled():
            kept[layer] = (outputs or inputs)[0]

    return store


def log_effective(coefficients: Tensor, norms: Tensor) -> Tensor:
    """Shape `[...]` for `coefficients [..., memory]`; `norms` are those of the values."""
    coefficients = coefficients.float()
    total, squares = coefficients @ norms, coefficients.square() @ norms.square()
    return ((total.square() + _EPSILON) / (squares + _EPSILON)).log()


class BalanceTerm:
    def __init__(self, model: Any, weight: float) -> None:
        self._weight = weight
        self._routed: list[tuple[Tensor, Tensor]] = []
        for block in model.base_model.layers:
            block.mlp.gate.register_forward_hook(self._keep)

    def _keep(self, module: nn.Module, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        if torch.is_grad_enabled():
            scores, _, chosen = output
            self._routed.append((scores, chosen))

    def penalty(self, text: Tensor, *, sparsity: float, free: float, revival: float) -> Tensor:
        total = torch.zeros((), device=text.device)
        for scores, chosen in self._routed:
            experts = scores.shape[-1]
            shares = torch.bincount(chosen.flatten(), minlength=experts) / chosen.numel()
            total = total + experts * (shares * scores.float().softmax(-1).mean(0)).sum()
        count, self._routed = max(1, len(self._routed)), []
        return self._weight * total / count
