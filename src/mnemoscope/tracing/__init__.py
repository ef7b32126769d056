"""What vectors say about the vocabulary: exact top tokens, ranks and distributions of scores."""

from mnemoscope.tracing.vocabulary import Distribution, distribution, rank_of, top

__all__ = ["Distribution", "distribution", "rank_of", "top"]
