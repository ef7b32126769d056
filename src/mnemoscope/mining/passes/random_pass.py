"""Draws firings of every memory at random for a finished atlas, in one more reading of its text. Makes `random`."""

from collections.abc import Mapping
from functools import partial

from mnemoscope.atlas.manifest import mined_from
from mnemoscope.errors import PlanDiffers
from mnemoscope.mining.passes.text_tables import write_layer_random, write_random_sentences
from mnemoscope.mining.text_pass import TextWork, collect_states, layer_state
from mnemoscope.models import LanguageModel
from mnemoscope.runs.run import Run
from mnemoscope.runs.texts import open_texts, prepare_texts
from mnemoscope.runs.workers.worker import Stage, Worker

_READING = "random text"


def prepare_again(run: Run, model: LanguageModel, moved: Mapping[str, str]) -> None:
    """Tokenizes the text of a finished atlas, which may have `moved`, again in the work folder. Raises what reading a
    text raises, PlanDiffers for another text.
    """
    names = {**mined_from(run.directory), **moved}
    validation = names["validation"] if run.plan.validation else None
    texts = open_texts(run.directory, names["corpus"], validation, run.plan)
    run.copy = prepare_texts(texts, run.directory, model, run.plan, progress=run.progress)
    if run.copy.fingerprint != run.plan.corpus_fingerprint:
        raise PlanDiffers(
            f"{texts['corpus'].spec} is not the text that {run.directory} was mined from; restore it, or say with"
            " --text where it lies now"
        )
    run.plan_batches(model)


def write_random(worker: Worker, _: int) -> None:
    load, layers = partial(layer_state, worker, random_alone=True), worker.plan.layers
    write_random_sentences(worker, [load(layer).random[layer].sentences() for layer in layers])
    worker.copy.release()
    for layer in layers:
        write_layer_random(worker, load(layer), layer)


RANDOM_STAGES = (
    Stage(
        _READING,
        "text",
        lambda worker, _: TextWork(worker, _READING, random_alone=True).run(),
        "random",
        mined="never",
        collect=partial(collect_states, stage=_READING),
    ),
    Stage("random", "run", write_random, "random", mined="never"),
)
