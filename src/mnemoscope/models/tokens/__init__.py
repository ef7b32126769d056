"""From text to token ids and back, and the beginning of a sentence."""
