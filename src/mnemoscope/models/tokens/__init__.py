"""From text to token ids and back, and what stands before a sentence."""
