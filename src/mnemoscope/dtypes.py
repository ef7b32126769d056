"""The number formats that models are run in, by name. Knows no torch: the command line checks a name without it."""

DTYPES = ("float32", "bfloat16", "float16")
