"""From rows of text to distinct, tokenized sentences on disk, of which some documents are held out."""
