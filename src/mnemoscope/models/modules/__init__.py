"""Any network as PyTorch has it: its modules, whoever wrapped, packed or moved their weights."""
