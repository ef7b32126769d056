"""A model as it was found, whatever it was found in, before it is put in a number format on a device and proved.

What huggingface.py and fairseq/ hand to loading.py; data only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mnemoscope.models.anatomy import Anatomy
from mnemoscope.models.tokens import Beginning, Reader


@dataclass(frozen=True)
class LoadedParts:
    """A network with what belongs to it.

    own        the network is a user's object: a change of dtype or device works on a copy
    config     what the fingerprint covers beside weights and tokens; has `to_dict()`
    context    tokens of the longest input
    anatomy    finds the parts of the network once it is placed
    beginning  the token put before every sentence, for a head of so many rows
    ends       the end-of-text tokens, for a head of so many rows
    """

    network: Any
    own: bool
    spec: str
    config: Any
    tokens: Reader
    context: int
    anatomy: Callable[[Any], Anatomy]
    beginning: Callable[[int], Beginning]
    ends: Callable[[int], frozenset[int]]
