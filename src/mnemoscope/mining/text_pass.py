"""The checkpointed pass of the model over the text."""

from pathlib import Path

from mnemoscope.corpus import TokenizedCorpus
from mnemoscope.foundation.files import write_bytes
from mnemoscope.kernels.devices import device_name, join_names
from mnemoscope.mining.plan.mining_plan import MiningPlan
from mnemoscope.mining.record import RunRecord
from mnemoscope.mining.steps import CHECKPOINT, RunContext, run_checkpointed
from mnemoscope.mining.text.batch_loader import BatchLoader
from mnemoscope.mining.text.batch_reader import BatchReader
from mnemoscope.mining.text.random_firings import choose_share
from mnemoscope.mining.text.state import MiningState, StateShape
from mnemoscope.models import LanguageModel
from mnemoscope.models.special_tokens import special_tokens

RANDOM_ALONE = "random.safetensors"
"""The state of the random firings of an atlas that is extended, in its work folder."""


class TextReader:
    def __init__(
        self, context: RunContext, model: LanguageModel, loader: BatchLoader, plan: MiningPlan, state: MiningState
    ) -> None:
        self.state = state
        self._context, self._loader, self._plan_hash = context, loader, plan.hash()
        never = special_tokens(model) if plan.skip_special else ()
        everywhere, one_in = plan.per_sentence == "all", choose_share(loader.positions) if state.random else 1
        self._reader = BatchReader(model, state, everywhere=everywhere, never=never, one_in=one_in)

    def take(self, number: int) -> int:
        """Counts one batch; returns the number of its tokens."""
        batch = self._loader(number)
        if not self._reader.read(batch):
            self.state.halved.append(number)
        return batch.tokens

    def serialise(self) -> bytes:
        """The state as a file."""
        self._reader.check()
        return self.state.serialise(plan=self._plan_hash)


def read_text(
    context: RunContext,
    model: LanguageModel,
    copy: TokenizedCorpus,
    plan: MiningPlan,
    *,
    share: tuple[int, int] | None,
    random_alone: bool = False,
) -> Path:
    """Runs the model over all batches of the text (or of its `share`) and returns the saved state, with `random_alone`
    one of the random firings only; resumes one.
    """
    seed = plan.seed if random_alone else plan.random_seed
    shape = StateShape.of(model, keep=plan.triggers, layers=plan.layers, random=seed, alone=random_alone)
    state = MiningState(shape, devices=model.devices)
    checkpoint = context.work / (RANDOM_ALONE if random_alone else CHECKPOINT)
    record = RunRecord(context.directory, plan.hash())
    if record.finds(checkpoint, context.progress):
        state.load(checkpoint, plan=plan.hash())
    state.device = join_names(state.device, device_name(model.device))
    loader = BatchLoader(copy, model, batch_tokens=plan.batch_tokens, seed=plan.seed)
    index, of = share or (1, 1)
    numbers = range(index - 1, loader.count, of)
    total = int(copy.counts["mined_tokens"]) if of == 1 else loader.tokens(numbers)
    done = loader.tokens(k for k in numbers if k < state.next_batch)
    reader = TextReader(context, model, loader, plan, state)

    def take(number: int) -> None:
        nonlocal done
        done += reader.take(number)
        state.next_batch = number + 1
        context.progress("mining", done, total, "tokens")

    left = [k for k in numbers if k >= state.next_batch]

    def save_state() -> None:
        data = reader.serialise()
        record.add_state(data)
        write_bytes(checkpoint, data)

    run_checkpointed(context, left, take, save_state)
    context.end_stage("mining")
    return checkpoint
