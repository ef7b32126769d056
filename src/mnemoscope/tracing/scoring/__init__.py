"""Scores of the vocabulary: ranked, in rows that fit, as distributions, as sums of the parts of a logit."""
