"""The ten questions, in the paper's order."""

QUESTIONS: tuple[str, ...] = (
    "key_patterns",
    "key_removals",
    "value_agreement",
    "value_rank",
    "value_confidence",
    "layer_activity",
    "layer_composition",
    "refinement_match",
    "refinement_confidence",
    "refinement_events",
)
