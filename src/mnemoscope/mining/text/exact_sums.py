"""Sums of float64 numbers that are exact in any order and at any size, as integers without a scale to choose.

A number's bits are cut at fixed places, every 32 bits, into limbs. A sum keeps the three uppermost limbs, each the sum
of that limb over all its numbers, and the place of the uppermost: that of the greatest number, all 53 bits of which lie
in the three. Of smaller numbers, what lies below 2**-64 of the greatest is dropped. A limb that is kept in the end was
kept from the first number on, so order changes nothing.

A limb is below 2**32, so 2**31 numbers fit: one per batch. Sizes from 2**-927 to 2**959 keep all bits: more than
float32 numbers, their squares, and sums of 2**60 of either have. Sums are int64 `[4, ...]`: the place and three limbs,
the uppermost first; zeros are the empty sum.
"""

import torch
from torch import Tensor

ROWS = 4
"""The length of a sum's first axis."""
_LIMBS, _BITS = 3, 32
_LEAST = -960
"""The exponent of the lowest bit of a limb at place 0."""


def exact_sum(numbers: Tensor) -> Tensor:
    """The sums `[4, ...]` of one finite float64 number `[...]` each."""
    exponent = torch.frexp(numbers)[1].to(torch.int64)
    place = torch.where(numbers == 0, 0, ((exponent - _LEAST - 1) // _BITS).clamp(min=0))
    left = numbers * _power_of_two(-(_LEAST + _BITS * place))  # in units of the uppermost limb's lowest bit
    limbs = []
    for _ in range(_LIMBS):
        limb = left.trunc()
        limbs.append(limb.to(torch.int64))
        left = (left - limb) * 2.0**_BITS
    return torch.stack([place, *limbs])


def add_sums(one: Tensor, other: Tensor) -> Tensor:
    place = torch.maximum(one[0], other[0])
    return torch.cat([place[None], _limbs_at(place, one) + _limbs_at(place, other)])


def value_of(sums: Tensor) -> Tensor:
    """The sums as float64 `[...]`, right to a few of the last bits if the numbers have one sign."""
    total = torch.zeros_like(sums[0], dtype=torch.float64)
    for number, limb in enumerate(sums[1:]):
        total += limb.double() * 2.0 ** (-_BITS * number)
    return total * _power_of_two(_LEAST + _BITS * sums[0])


def _limbs_at(place: Tensor, sums: Tensor) -> Tensor:
    """The limbs of sums, shifted to an uppermost place as high as theirs or higher."""
    room = torch.cat([torch.zeros_like(sums[1:]), sums[1:]])
    number = torch.arange(_LIMBS, device=sums.device).view(-1, *(1,) * place.dim())
    return room.gather(0, number + _LIMBS - (place - sums[0]).clamp(max=_LIMBS))


def _power_of_two(exponent: Tensor) -> Tensor:
    """Exact on every device, for exponents -1022 to 1023."""
    return ((exponent + 1023) << 52).view(torch.float64)
