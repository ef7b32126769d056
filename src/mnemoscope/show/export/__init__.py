"""An atlas for people: one offline page with a figure for every question of the paper, ours beside the paper's."""

from mnemoscope.show.export.writing import Report, write_report

__all__ = ["Report", "write_report"]
