"""What a worker does of the stages after the text: nodes of the tree of merges, and pieces of the late passes.

All of them write whole files that depend on nothing but their inputs, so doing one twice does no harm.
"""

from mnemoscope.atlas.manifest import WORK
from mnemoscope.distributed.desk import Desk
from mnemoscope.distributed.stages import Stage
from mnemoscope.mining.late_stages import LateStages
from mnemoscope.mining.merge_tree import merge_node, plan_tree
from mnemoscope.mining.state import StateShape
from mnemoscope.mining.steps import RunContext

MERGING = "merging"
"""The stage of a level of the tree is this word and the level's number, from 1 on."""


class Tasks:
    """Does the tasks of any stage by number; what several tasks need is read once."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._late: LateStages | None = None

    def do(self, stage: Stage, number: int) -> None:
        """Does one task, and leaves whole files; raises what the passes raise."""
        word, _, level = stage.name.partition(" ")
        if word == MERGING:
            self._merge(stage, int(level) - 1, number)
        else:
            self._late_stages(stage).run(stage.name, number)

    def _merge(self, stage: Stage, level: int, number: int) -> None:
        desk = self._desk
        work, states = desk.directory / WORK, [desk.directory / path for path in stage.inputs]
        node = plan_tree(len(states))[level][number]
        shape = StateShape.of(desk.model, keep=desk.plan.triggers, layers=desk.plan.layers)
        merge_node(
            node.paths(states, work), work / node.name, shape, desk.plan.hash(), mixed=desk.run.mixed_devices
        )

    def _late_stages(self, stage: Stage) -> LateStages:
        if self._late is None:
            desk = self._desk
            state = desk.directory / stage.inputs[0]
            self._late = LateStages(
                RunContext(desk.directory), desk.model, desk.copy, desk.plan, state, pieces=desk.run.pieces
            )
        return self._late
