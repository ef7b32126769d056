"""Human judgements of memories: single judgements, and campaigns of many annotators."""
