"""Sentences in, token batches out: sources, sentence splitting, the tokenized corpus, batches, the built-in corpus.

It is handed an `encode(list of text) -> list of ids` and gives numpy arrays, so it knows neither tokenizer nor torch.
"""

from mnemoscope.corpus.encoded_batches import Encoder
from mnemoscope.corpus.first_pass import document_hash
from mnemoscope.corpus.preparation import open_prepared, prepare
from mnemoscope.corpus.row_fields import Render
from mnemoscope.corpus.sentences import split_sentences
from mnemoscope.corpus.sources import Source, open_source
from mnemoscope.corpus.tokenized_corpus import TokenizedCorpus

__all__ = [
    "Encoder",
    "Render",
    "Source",
    "TokenizedCorpus",
    "document_hash",
    "open_prepared",
    "open_source",
    "prepare",
    "split_sentences",
]
