"""Who pushed a prediction: direct effects, attributions and ablations of memories, for one prompt or many."""

from mnemoscope.attribution.attribute import Attributor, attribute
from mnemoscope.attribution.attribution import Attribution
from mnemoscope.attribution.diff import Differ, diff, second_model
from mnemoscope.attribution.diff_prompts import PromptsDifference, diff_prompts
from mnemoscope.attribution.prompts import PromptsAttribution, attribute_prompts
from mnemoscope.attribution.restore import check_free, check_savable, restore
from mnemoscope.attribution.run_difference import RunDifference
from mnemoscope.foundation.options.prompt_file import read_prompts

__all__ = [
    "Attribution",
    "Attributor",
    "Differ",
    "PromptsAttribution",
    "PromptsDifference",
    "RunDifference",
    "attribute",
    "attribute_prompts",
    "check_free",
    "check_savable",
    "diff",
    "diff_prompts",
    "read_prompts",
    "restore",
    "second_model",
]
