"""Many saved states -> one, as a tree: the nodes of a level are merged independently, one level after the other.

Which node merges what is arithmetic. A node reads its inputs layer by layer and writes its output likewise, so it needs
memory for one layer, however many inputs, layers and states there are; it needs no model. The result is the same file
whatever the tree.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mnemoscope.errors import AtlasDamaged

if TYPE_CHECKING:
    from mnemoscope.mining.state import MiningState, StateShape

FAN = 8
"""Inputs of a node at most: chosen by benchmarks/merging.py (LOG.md)."""


@dataclass(frozen=True)
class Node:
    """A step of the tree: the outputs of the level below, or of level 0 the states, that it merges, by their index."""

    level: int
    index: int
    inputs: tuple[int, ...]

    @property
    def name(self) -> str:
        """The file of its output, in the work folder."""
        return f"merged-{self.level}-{self.index:05d}.safetensors"

    def paths(self, states: Sequence[Path], work: Path) -> list[Path]:
        """The files of its inputs in a tree of these states."""
        if self.level == 0:
            return [states[index] for index in self.inputs]
        return [work / Node(self.level - 1, index, ()).name for index in self.inputs]


def plan_tree(count: int, fan: int = FAN) -> list[list[Node]]:
    """The levels of a tree over so many states; the last has one node, whose output is all of them.

    As few nodes as the fan-in allows, which share their inputs evenly. One state is a tree of one node, none is none.
    """
    if fan < 2:
        raise ValueError(f"a node merges at least two states, not {fan}")
    levels: list[list[Node]] = []
    while count > 1 or (count and not levels):
        nodes = -(-count // fan)
        cuts = [count * index // nodes for index in range(nodes + 1)]
        levels.append([
            Node(len(levels), index, tuple(range(cuts[index], cuts[index + 1]))) for index in range(nodes)
        ])  # fmt: skip
        count = nodes
    return levels


def merge_node(inputs: Sequence[Path], output: Path, shape: "StateShape", plan: str, *, mixed: bool = False) -> None:
    """Writes the state of all inputs together to `output`, whole or not at all; not if it is there already.

    `plan` is the hash of their plan; `mixed` allows states that were computed on things of different names. Raises
    AtlasDamaged and PartsDiffer, which name the input, and StoreFailed.
    """
    # Not before: the tree itself is arithmetic, and is asked for where torch is not.
    from mnemoscope.mining.state import MiningState
    from mnemoscope.mining.state_file import writing_tensors

    whole = MiningState.outline(shape)
    headers = [whole.absorb_facts(path, plan=plan, mixed=mixed) for path in inputs]
    if whole.finished and _is_made(output, whole, plan):
        return
    counts = whole.counts()
    with writing_tensors(output, {**whole.tensors(), **counts}, whole.header(plan)) as put:
        put(counts)
        for layer in shape.memories:
            state = MiningState(shape.of_layer(layer))
            for path, header in zip(inputs, headers, strict=True):
                state.absorb_numbers(path, header)
            put(state.tensors())


def _is_made(output: Path, whole: "MiningState", plan: str) -> bool:
    """Whether the output is there, and says of itself what the whole does."""
    found = type(whole).outline(whole.shape)
    try:
        found.absorb_facts(output, plan=plan, mixed=True)
    except AtlasDamaged:
        return False
    return (found.header(plan), found.halved) == (whole.header(plan), whole.halved)
