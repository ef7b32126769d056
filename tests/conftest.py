"""Settings of every test: two cores shared by workers, no network, the same examples every time."""

import os

# Before any test imports torch or a tokenizer: several workers share the machine, and threads would fight.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAYON_NUM_THREADS", "1")
os.environ.setdefault("POLARS_MAX_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"

from hypothesis import settings

settings.register_profile("here", deadline=None, derandomize=True)
settings.load_profile("here")
