"""Figures of the questions beyond the paper."""
