"""Which documents of the mined text the model continues word for word from their beginning. Makes `memorised`.

A document counts with its first 64 tokens: given 32, the model has memorised it if it continues greedily with the next
32 (definitions.md section 9, audit). That holds exactly if the text's own next token is the best one at every position,
so one forward answers it.
"""

from dataclasses import asdict

import numpy as np
import polars as pl
import torch
from torch import Tensor

from mnemoscope.atlas import open_atlas
from mnemoscope.atlas.manifest import mined_from
from mnemoscope.corpus.tokenized.document_sample import DocumentSample, SampledDocument
from mnemoscope.errors import CorpusNotFound, NotFinite
from mnemoscope.foundation.budget import BUDGET, rows_within
from mnemoscope.foundation.memory_names import MEMORISED_GIVEN, MEMORISED_TOKENS
from mnemoscope.mining.passes.prefix_pass import plan_rows
from mnemoscope.mining.steps import Answers, empty_answers
from mnemoscope.models.forward.batches import pad
from mnemoscope.models.forward.hooks import read_final
from mnemoscope.runs.texts import encoder_of, open_text
from mnemoscope.runs.workers.worker import Worker
from mnemoscope.tracing import rank_of

DRAWING = "memorised documents"
"""The stage in which the text is read."""
DOCUMENTS = 2_000
"""Documents of the mined text, at most, and as many held-out ones."""


class MemorisedPass:
    """The forwards of the beginnings of the documents drawn."""

    def __init__(self, worker: Worker) -> None:
        self._worker, model = worker, worker.model
        self._model = model
        documents = [SampledDocument(**one) for one in worker.run.read_note(DRAWING)["documents"]]
        self.documents = documents
        self._tokens = np.array([one.tokens for one in documents], np.int64).reshape(-1, MEMORISED_TOKENS)
        self.answers: Answers = {
            "agreed": empty_answers(len(documents), np.int32),
            "loss": empty_answers(len(documents), np.float64),
        }
        lengths = np.full(len(documents), model.reading.columns(MEMORISED_TOKENS))
        self.steps = plan_rows(worker, self.take, lengths, self.answers, stage="memorised", unit="documents")

    def take(self, items: slice) -> None:
        ids = pad(list(self._tokens[items]), self._model)
        final: list[Tensor] = []
        with torch.inference_mode():
            with read_final(self._model, final.append, own_thread=True):
                self._model.backbone(ids)
            first = self._model.reading.columns(MEMORISED_GIVEN)
            asked = ids[:, first:].reshape(-1)
            stream = final[0][:, first - 1 : -1].reshape(len(asked), -1)
            best, loss = [], []
            rows = rows_within(BUDGET.scores, self._model.sizes.vocabulary)
            for part, tokens in zip(torch.split(stream, rows), torch.split(asked, rows), strict=True):
                scores = self._model.scores(part, projection="lens")
                tokens = tokens.to(scores.device)
                best.append((rank_of(scores, tokens) == 0).cpu())
                loss.append((scores.logsumexp(1) - scores.gather(1, tokens[:, None])[:, 0]).double().cpu())
        right, nats = (torch.cat(parts).numpy().reshape(items.stop - items.start, -1) for parts in (best, loss))
        self.answers["agreed"][items] = np.logical_and.accumulate(right, axis=1).sum(1)
        self.answers["loss"][items] = nats.mean(1)
        if not np.isfinite(nats).all():
            number = self.documents[items.start + int(np.flatnonzero(~np.isfinite(nats).all(1))[0])].number
            raise NotFinite(f"the model has no finite loss on document {number}; try --dtype float32")

    def write(self) -> None:
        columns = {
            "document": np.array([one.number for one in self.documents], np.int64),
            "held_out": np.array([one.held_out for one in self.documents], np.bool_),
            "text": [one.text for one in self.documents],
            "sentences": [one.sentences for one in self.documents],
            "inside": [one.inside for one in self.documents],
        }
        self._worker.write("memorised", columns | self.answers)


def draw_documents(worker: Worker, _: int) -> None:
    """Reads the text again and notes the documents drawn; none for a model with a shorter context or a source. Raises
    CorpusNotFound if the text has moved, PlanDiffers for another text, and what reading a text raises.
    """
    asked = worker.model.longest >= MEMORISED_TOKENS and worker.plan.source_field is None
    documents = find_documents(worker) if asked else []
    worker.note(DRAWING, {"documents": [asdict(one) for one in documents]})


def find_documents(worker: Worker) -> list[SampledDocument]:
    directory, plan = worker.directory, worker.plan
    try:
        source = open_text(mined_from(directory)["corpus"], plan).with_sample(plan.sample, plan.seed)
    except CorpusNotFound as error:
        raise CorpusNotFound(
            f"{error}; the mined text is read again, so run this where `mnemoscope mine` was run"
        ) from None
    counts = open_atlas(directory).manifest.corpus.counts
    own_validation = plan.validation is not None or not counts["held_out_documents"]
    encoder, _, render = encoder_of(worker.model, plan)
    paths = sorted((directory / "sentences").glob("part-*.parquet"))
    stored = pl.read_parquet(paths, columns=["sentence", "document", "text", "held_out"], glob=False)
    sample = DocumentSample(
        encoder,
        plan.split,
        plan.seed,
        length=MEMORISED_TOKENS,
        mined=DOCUMENTS,
        held_out=DOCUMENTS,
        threshold=0 if own_validation else int(counts["held_out_threshold"]),
        listed=None if own_validation else source.held_out,
        render=render,
    )
    return sample.draw(
        source,
        stored.filter(~pl.col("held_out")).drop("held_out"),
        tell=lambda: worker.progress("reading text", source.meter.done, source.size, "bytes"),
    )
