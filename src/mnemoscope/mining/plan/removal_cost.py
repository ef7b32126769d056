"""The default number of memories in the removal pass: as many as half of the mining time allows."""

TRIGGERS_ASKED = 50
"""Positive triggers asked about, per memory."""
MOST_MEMORIES = 100
"""Most memories per layer of the default."""
LEAST_OF_LAYER, LEAST_OF_ALL = 2, 60
"""Its least: memories per layer, and in all layers together, which is 3,000 triggers."""
_DEPTH = 0.6
"""The mean share of the model that a run goes through."""


def default_removals(*, mined_tokens: int, mined_sentences: int, layers: int) -> int:
    """Memories per layer that keep the pass under half of the mining, from the size of the text alone."""
    each = removal_work(1, mean_length=mined_tokens / max(1, mined_sentences), layers=layers)
    least = max(LEAST_OF_LAYER, -(-LEAST_OF_ALL // layers))
    return int(min(MOST_MEMORIES, max(least, (mined_tokens + mined_sentences) / 2 // each)))


def removal_work(memories: float, *, mean_length: float, layers: int) -> float:
    """Tokens through the whole model that so many memories per layer take, about."""
    return memories * TRIGGERS_ASKED * 3 * (mean_length / 2 + 1) * _DEPTH * max(1, layers)
