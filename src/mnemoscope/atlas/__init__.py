"""The atlas: a self-describing folder of tables (FORMAT.md), written and read without torch.

Reading starts at `open_atlas`; writing goes through schema.py, store.py, manifest.py and lock.py.
"""

from mnemoscope.atlas.read import Atlas, Memory, open_atlas
from mnemoscope.atlas.verification import verify

__all__ = ["Atlas", "Memory", "open_atlas", "verify"]
