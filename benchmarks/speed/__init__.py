"""How fast mining is, relative to a bare forward pass and to common loops, within one run.

`loops` and `shapes` need only torch and transformers; `documentation` also reads text and measures the value pass.
"""
