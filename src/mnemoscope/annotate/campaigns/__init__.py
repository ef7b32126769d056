"""People judging keys: a campaign of keys and blind controls, stored for good, and what the judgements add up to.

`store.open_store` is where a page begins; each of its methods is one transaction. What a row may hold and how the final
judgements are read is in the room `judgements`, below. The public names are those of `mnemoscope.annotations`.
"""
