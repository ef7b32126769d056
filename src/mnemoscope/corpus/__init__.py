"""Sentences in, token batches out: sources, sentence splitting, the tokenized corpus, batches, the built-in corpus.

Takes an `encode(list of text) -> list of ids` and returns numpy arrays; knows neither tokenizer nor torch.
"""

from mnemoscope.corpus.sources.opening import Source, open_source
from mnemoscope.corpus.sources.row_fields import Render
from mnemoscope.corpus.sources.sentences import split_sentences
from mnemoscope.corpus.tokenized.encoded_batches import Encoder
from mnemoscope.corpus.tokenized.first_pass import document_hash
from mnemoscope.corpus.tokenized.preparation import open_prepared, prepare
from mnemoscope.corpus.tokenized.tokenized_corpus import TokenizedCorpus

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
