"""What an atlas says, as figures, tables and sentences: shared by the report and the pages, which only draw them.

Import what is needed from its own file: numbers and words come at once, the drawing library only with the figures.
"""
