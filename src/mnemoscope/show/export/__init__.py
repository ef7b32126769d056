"""The report: one offline page with a figure for every question, with the paper's results beside ours."""

from mnemoscope.show.export.writing import Report, write_report

__all__ = ["Report", "write_report"]
