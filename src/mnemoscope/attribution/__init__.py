"""Who pushed a prediction: direct effects, attributions and ablations of memories, for one prompt or many."""

from mnemoscope.attribution.attribute import Attributor, attribute
from mnemoscope.attribution.attribution import Attribution
from mnemoscope.attribution.prompts import PromptsAttribution, attribute_prompts, read_prompts

__all__ = ["Attribution", "Attributor", "PromptsAttribution", "attribute", "attribute_prompts", "read_prompts"]
