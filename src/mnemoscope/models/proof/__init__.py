"""Checks that the network was read correctly: each row alone and with others, each layer against the model itself."""
