"""The pass over the text: batches, blocks of coefficients, and the state that they add up to."""
