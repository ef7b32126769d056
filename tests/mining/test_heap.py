"""Memory that was freed between what is still in use goes back to the operating system."""

from mnemoscope.mining.heap import Heap, _resident

MIB = 1 << 20


def make_holes() -> list[bytes]:
    """64 MiB in pieces that the C library takes from its heap; every hundredth stays in use."""
    pieces = [bytes([1]) * (MIB // 16) for _ in range(64 * 16)]
    return pieces[::100]


def test_holes_go_back_when_they_have_become_much() -> None:
    heap = Heap(room=16 * MIB)
    before = _resident()
    kept = make_holes()
    holes = _resident() - before
    heap.look()
    assert holes > 32 * MIB, "no holes, so this shows nothing"
    assert _resident() - before < 16 * MIB
    assert all(piece[0] == 1 for piece in kept)


def test_little_growth_is_left_alone() -> None:
    heap = Heap(room=256 * MIB)
    before = _resident()
    kept = make_holes()
    heap.look()
    assert _resident() - before > 32 * MIB
    heap.give_back()
    assert _resident() - before < 16 * MIB
    assert kept


def test_without_glibc_nothing_happens() -> None:
    heap = Heap()
    heap._trim = None
    heap.look()
    heap.give_back()
