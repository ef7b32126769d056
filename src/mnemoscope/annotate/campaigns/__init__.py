"""Campaigns: keys and blind controls that people judge, their storage, and the statistics of the judgements.

Pages start at `store.open_store`; each of its methods is one transaction. The contents of rows and the choice of final
judgements are in `annotate.judgements`. The public names are those of `mnemoscope.annotations`.
"""
