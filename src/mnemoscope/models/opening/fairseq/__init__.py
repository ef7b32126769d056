"""fairseq's language models, the paper's own checkpoint format; reads the format without fairseq."""

from mnemoscope.models.opening.fairseq.opening import open_checkpoint

__all__ = ["open_checkpoint"]
