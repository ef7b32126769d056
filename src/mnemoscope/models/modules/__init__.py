"""Any network in PyTorch: its modules, however their weights are wrapped, packed or placed."""
