"""People judge what memories store: single judgements, and campaigns of many annotators."""
