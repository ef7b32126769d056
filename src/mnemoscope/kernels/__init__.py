"""Measures of a block of coefficients: in PyTorch, or on a graphics card in Triton."""
