"""What is read off a block of coefficients: by PyTorch, or on a graphics card by Triton."""
