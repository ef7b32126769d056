"""Measures the speed of mining relative to a bare forward pass and to common loops, within one run.

`loops` and `shapes` import nothing of the store: `python -m mnemoscope.bench` needs only torch and transformers.
`documentation` also reads text and measures the value pass.
"""
