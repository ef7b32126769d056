"""Who pushed a prediction: direct effects, attributions and ablations of memories, for one prompt or many."""

from mnemoscope.attribution.attribute import Attributor, attribute
from mnemoscope.attribution.attribution import Attribution

__all__ = ["Attribution", "Attributor", "attribute"]
