"""Draws firings of every memory at random for a finished atlas, in one more reading of its text. Makes `random`."""

from dataclasses import replace

from mnemoscope.atlas.folder import remove_work
from mnemoscope.mining.mining_run import MiningRun
from mnemoscope.mining.passes.text_tables import write_layer_random, write_random_sentences
from mnemoscope.mining.run_folder import prepare_again
from mnemoscope.mining.steps import CHECKPOINT
from mnemoscope.mining.text.state import MiningState, StateShape
from mnemoscope.mining.text_pass import read_text


def make_random(run: MiningRun) -> None:
    """Reads what no earlier run has read, and writes the tables; the text is left only where mining kept it. Raises
    what reading a text raises, PlanDiffers for another text, Interrupted, StoreFailed.
    """
    context, model, plan = run.context, run.model, run.plan
    copy = prepare_again(context, model, plan, run.texts)
    path = read_text(context, model, copy, plan, share=None, random_alone=True)

    def load(layer: int) -> MiningState:
        state = MiningState(StateShape.of(model, keep=plan.triggers, layers=[layer], random=plan.seed, alone=True))
        state.load(path, plan=plan.hash())
        return state

    write_random_sentences(replace(run, copy=copy), [load(layer).random[layer].sentences() for layer in plan.layers])
    copy.release()
    for layer in plan.layers:
        write_layer_random(run, load(layer), layer)
    if not (context.work / CHECKPOINT).is_file():
        remove_work(context.directory)
