"""Figures, tables and sentences about an atlas, shared by the report and the pages.

Import from the single files: numbers and words load at once, the drawing library (half a second) only with figures.
"""
