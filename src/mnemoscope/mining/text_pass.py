"""One pass of the model over the text, checkpointed: every batch of the plan, read and counted in its order."""

from mnemoscope.corpus import TokenizedCorpus
from mnemoscope.mining.batch_loader import BatchLoader
from mnemoscope.mining.batch_reader import BatchReader
from mnemoscope.mining.host import device_name, join_names
from mnemoscope.mining.plan import MiningPlan
from mnemoscope.mining.state import MiningState, StateShape
from mnemoscope.mining.steps import CHECKPOINT, RunContext
from mnemoscope.models import LanguageModel
from mnemoscope.progress import Checkpoints


def read_text(
    context: RunContext,
    model: LanguageModel,
    copy: TokenizedCorpus,
    plan: MiningPlan,
    *,
    share: tuple[int, int] | None,
) -> MiningState:
    """The state once the model has run over every batch of the text (or of its part), going on from a saved state.

    It is saved now and then, and at the end. Raises NotFinite (nothing of that batch counted), Interrupted (state
    saved), StoreFailed.
    """
    state = MiningState(StateShape.of(model, keep=plan.triggers, layers=plan.layers), devices=model.devices)
    checkpoint, plan_hash = context.work / CHECKPOINT, plan.hash()
    if checkpoint.is_file():
        state.load(checkpoint, plan=plan_hash)
    state.device = join_names(state.device, device_name(model.device))
    loader = BatchLoader(copy, model, batch_tokens=plan.batch_tokens, seed=plan.seed)
    index, of = share or (1, 1)
    numbers = range(index - 1, loader.count, of)
    total = int(copy.counts["mined_tokens"]) if of == 1 else loader.tokens(numbers)
    done = loader.tokens(k for k in numbers if k < state.next_batch)
    reader = BatchReader(model, state, everywhere=plan.per_sentence == "all")

    def save_state() -> None:
        reader.check()
        state.save(checkpoint, plan=plan_hash)

    with Checkpoints(save_state, every=context.checkpoint_every) as checkpoints:
        for k in (k for k in numbers if k >= state.next_batch):
            batch = loader(k)
            if not reader.read(batch):
                state.halved.append(k)
            reader.count()
            state.next_batch = k + 1
            done += batch.tokens
            context.heap.check()
            context.progress("mining", done, total, "tokens")
            checkpoints.step_done()
    save_state()
    context.heap.trim()
    context.end_stage("mining")
    return state
