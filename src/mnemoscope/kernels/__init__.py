"""Measures of a block of coefficients: in PyTorch, or on a GPU in Triton."""
