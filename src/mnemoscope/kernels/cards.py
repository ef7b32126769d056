"""Triton kernels that measure a batch's coefficients on a GPU; choose.py imports them where Triton is installed.

Results do not depend on the order of programs.
"""

import triton
import triton.language as tl


@triton.jit
def sweep_rows(
    block,
    row_stride,
    place_stride,
    lengths,
    rows,
    groups,
    memories,
    peaks,
    peak_places,
    lows,
    low_places,
    greatest,
    least,
    fired,
    sums,
    squares,
    counts,
    NEGATIVE: tl.constexpr,
    SAMPLED: tl.constexpr,
    ZERO: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Measures `block [row, place, memory]`, whose rows have `lengths` places, in one pass.

    Writes per row the maximum and its first place (`[row, memory]`), if NEGATIVE the minimum too. Writes the other
    measures per group of rows, every `groups`-th (`[group, memory]`). If SAMPLED, also sums squares, and counts all
    bins but ZERO in `counts [bin, memory]`.
    """
    memory = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    group = tl.program_id(1)
    inside = memory < memories
    group_high = tl.full((BLOCK,), float("-inf"), tl.float32)
    group_low = tl.full((BLOCK,), float("inf"), tl.float32)
    group_fired = tl.zeros((BLOCK,), tl.int32)
    group_sum = tl.zeros((BLOCK,), tl.float64)
    group_squares = tl.zeros((BLOCK,), tl.float64)
    for row in range(group, rows, groups):
        high = tl.full((BLOCK,), float("-inf"), tl.float32)
        low = tl.full((BLOCK,), float("inf"), tl.float32)
        high_place = tl.zeros((BLOCK,), tl.int32)
        low_place = tl.zeros((BLOCK,), tl.int32)
        total = tl.zeros((BLOCK,), tl.float32)
        at = block + tl.cast(row, tl.int64) * row_stride + memory
        for place in tl.range(0, tl.load(lengths + row), loop_unroll_factor=4):
            value = tl.load(at + tl.cast(place, tl.int64) * place_stride, mask=inside, other=0.0).to(tl.float32)
            higher, lower = value > high, value < low
            high = tl.where(higher, value, high)
            high_place = tl.where(higher, place, high_place)
            low = tl.where(lower, value, low)
            low_place = tl.where(lower, place, low_place)
            group_fired += (value > 0).to(tl.int32)
            if SAMPLED:
                wide = value.to(tl.float64)
                group_sum += wide
                group_squares += wide * wide
                # The bin follows from the exponent: 116 means less than 2**-10, 133 means 2**6 and more. A negative
                # power of two is the end of its bin, so one is subtracted from its bits.
                bits = (value + 0.0).to(tl.int32, bitcast=True)
                below = bits < 0
                steps = tl.minimum(tl.maximum(((bits - below.to(tl.int32)) >> 23) & 255, 116), 133) - 116
                where = tl.where(below, ZERO - 1 - steps, ZERO + steps)
                tl.atomic_add(counts + where * memories + memory, 1, mask=inside & (where != ZERO), sem="relaxed")
            else:
                total += value
        if not SAMPLED:
            group_sum += total.to(tl.float64)
        group_high = tl.maximum(group_high, high)
        group_low = tl.minimum(group_low, low)
        to = tl.cast(row, tl.int64) * memories + memory
        tl.store(peaks + to, high, mask=inside)
        tl.store(peak_places + to, high_place, mask=inside)
        if NEGATIVE:
            tl.store(lows + to, low, mask=inside)
            tl.store(low_places + to, low_place, mask=inside)
    to = group * memories + memory
    tl.store(greatest + to, group_high, mask=inside)
    tl.store(least + to, group_low, mask=inside)
    tl.store(fired + to, group_fired, mask=inside)
    tl.store(sums + to, group_sum, mask=inside)
    if SAMPLED:
        tl.store(squares + to, group_squares, mask=inside)


@triton.jit
def choose_best(
    peaks,
    places,
    order,
    sentences,
    threshold,
    magnitude,
    sentence,
    position,
    counts,
    rows,
    memories,
    keep,
    first,
    SIGN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Each memory's best `keep` rows (by SIGN times the peak) that reach its threshold; `order` sorts by sentence."""
    memory = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = memory < memories
    least = tl.load(threshold + memory, mask=inside, other=float("inf"))
    reached = tl.zeros((BLOCK,), tl.int32)
    above = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, rows, ROWS):
        value, _, _ = _magnitudes(peaks, order, start, rows, memories, memory, inside, SIGN, ROWS)
        reached += tl.sum((value >= least[None, :]).to(tl.int32), 0)
        above += tl.sum((value > least[None, :]).to(tl.int32), 0)
    if tl.max(reached, 0) > keep:
        # More than `keep`: bisect for the last kept magnitude over its bits, which order positive floats.
        lower = least.to(tl.int32, bitcast=True)
        upper = tl.full((BLOCK,), 0x7F800000, tl.int32)
        for _ in range(31):
            middle = lower + (upper - lower) // 2
            more = _count_above(peaks, order, rows, memories, memory, inside, middle, SIGN, ROWS, BLOCK) >= keep
            lower = tl.where(more, middle + 1, lower)
            upper = tl.where(more, upper, middle)
        least = tl.where(reached > keep, upper.to(tl.float32, bitcast=True), least)
        bits = least.to(tl.int32, bitcast=True)
        above = _count_above(peaks, order, rows, memories, memory, inside, bits, SIGN, ROWS, BLOCK)
    if tl.max(reached, 0) > 0:
        room = keep - above
        equals = tl.zeros((BLOCK,), tl.int32)
        taken = tl.zeros((BLOCK,), tl.int32)
        for start in range(0, rows, ROWS):
            value, row, exists = _magnitudes(peaks, order, start, rows, memories, memory, inside, SIGN, ROWS)
            equal = (value == least[None, :]).to(tl.int32)
            enters = (value > least[None, :]) | ((equal > 0) & (equals[None, :] + tl.cumsum(equal, 0) <= room[None, :]))
            number = enters.to(tl.int32)
            to = memory[None, :].to(tl.int64) * keep + taken[None, :] + tl.cumsum(number, 0) - 1
            ids = tl.load(sentences + row, mask=exists, other=0)
            place = tl.load(places + row[:, None].to(tl.int64) * memories + memory[None, :], mask=enters, other=0)
            tl.store(magnitude + to, value, mask=enters)
            tl.store(sentence + to, tl.broadcast_to(ids[:, None], (ROWS, BLOCK)), mask=enters)
            tl.store(position + to, place + first, mask=enters)
            taken += tl.sum(number, 0)
            equals += tl.sum(equal, 0)
    tl.store(counts + memory, tl.minimum(reached, keep), mask=inside)


@triton.jit
def _magnitudes(peaks, order, start, rows, memories, memory, inside, SIGN: tl.constexpr, ROWS: tl.constexpr):
    """Magnitudes `[number, memory]` of ROWS rows in `order`, the rows' indices, and which of them exist."""
    number = start + tl.arange(0, ROWS)
    exists = number < rows
    row = tl.load(order + number, mask=exists, other=0)
    mask = exists[:, None] & inside[None, :]
    peak = tl.load(peaks + row[:, None].to(tl.int64) * memories + memory[None, :], mask=mask, other=0.0)
    return tl.where(mask, SIGN * peak, float("-inf")), row, exists


@triton.jit
def _count_above(
    peaks, order, rows, memories, memory, inside, bits, SIGN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """How many magnitudes of each memory exceed the float with these bits."""
    least = bits.to(tl.float32, bitcast=True)
    above = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, rows, ROWS):
        value, _, _ = _magnitudes(peaks, order, start, rows, memories, memory, inside, SIGN, ROWS)
        above += tl.sum((value > least[None, :]).to(tl.int32), 0)
    return above


@triton.jit
def merge_best(
    magnitude,
    sentence,
    position,
    more_magnitude,
    more_sentence,
    more_position,
    counts,
    best_magnitude,
    best_sentence,
    best_position,
    keep,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """The best `keep` of a memory's own (sorted) and its `counts` new triggers; a rank is how many triggers precede."""
    memory = tl.program_id(0).to(tl.int64)
    base = memory * keep
    count = tl.load(counts + memory)
    number = tl.arange(0, WIDTH)
    valid = number < keep
    own_magnitude = tl.load(magnitude + base + number, mask=valid, other=0.0)
    own_sentence = tl.load(sentence + base + number, mask=valid, other=0)
    own_position = tl.load(position + base + number, mask=valid, other=0)
    rank = number
    for start in range(0, count, CHUNK):
        new = start + tl.arange(0, CHUNK)
        exists = new < count
        new_magnitude = tl.load(more_magnitude + base + new, mask=exists, other=0.0)
        new_sentence = tl.load(more_sentence + base + new, mask=exists, other=0)
        new_position = tl.load(more_position + base + new, mask=exists, other=0)
        both = valid[:, None] & exists[None, :]
        first = _precede(
            own_magnitude[:, None],
            own_sentence[:, None],
            own_position[:, None],
            new_magnitude[None, :],
            new_sentence[None, :],
            new_position[None, :],
        )
        rank += tl.sum((both & ~first).to(tl.int32), 1)
        new_rank = tl.sum((both & first).to(tl.int32), 0)
        for begin in range(0, count, CHUNK):
            other = begin + tl.arange(0, CHUNK)
            there = other < count
            before = _precede(
                tl.load(more_magnitude + base + other, mask=there, other=0.0)[:, None],
                tl.load(more_sentence + base + other, mask=there, other=0)[:, None],
                tl.load(more_position + base + other, mask=there, other=0)[:, None],
                new_magnitude[None, :],
                new_sentence[None, :],
                new_position[None, :],
            )
            before = before & there[:, None] & (other[:, None] != new[None, :])
            new_rank += tl.sum(before.to(tl.int32), 0)
        kept = exists & (new_rank < keep)
        tl.store(best_magnitude + base + new_rank, new_magnitude, mask=kept)
        tl.store(best_sentence + base + new_rank, new_sentence, mask=kept)
        tl.store(best_position + base + new_rank, new_position, mask=kept)
    kept = valid & (rank < keep)
    tl.store(best_magnitude + base + rank, own_magnitude, mask=kept)
    tl.store(best_sentence + base + rank, own_sentence, mask=kept)
    tl.store(best_position + base + rank, own_position, mask=kept)


@triton.jit
def _precede(magnitude, sentence, position, other_magnitude, other_sentence, other_position):
    """Whether triggers precede others or equal them: magnitude descending, then sentence and position ascending."""
    nearer = (sentence < other_sentence) | ((sentence == other_sentence) & (position <= other_position))
    return (magnitude > other_magnitude) | ((magnitude == other_magnitude) & nearer)
