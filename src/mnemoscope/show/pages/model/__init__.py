"""The pages that run a model: their addresses, with limits, and what is drawn beside its answers. No torch here."""
