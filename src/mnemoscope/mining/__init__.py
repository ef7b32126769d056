"""Room of Mnemoscope."""
