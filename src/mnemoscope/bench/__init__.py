"""How fast mining is, against what it could be and against what people write: ratios within one run.

`loops` and `shapes` import nothing of the store: `python -m mnemoscope.bench` runs on a machine that has torch and
transformers and no more. `documentation` reads text and measures the value pass too.
"""
