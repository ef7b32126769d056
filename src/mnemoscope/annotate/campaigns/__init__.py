"""Campaigns: keys and blind controls that people judge, their storage, and the statistics of the judgements.

Public names are in `mnemoscope.annotations`.
"""
