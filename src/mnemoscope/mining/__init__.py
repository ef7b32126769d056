"""Long passes over a text: from a model and a corpus to an atlas, resumable, in parts, exact."""

from mnemoscope.mining.merging import merge
from mnemoscope.mining.plan import MiningPlan
from mnemoscope.mining.run import mine, run_mining

__all__ = ["MiningPlan", "merge", "mine", "run_mining"]
