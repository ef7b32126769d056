"""From what a user names to rows of text: files, folders, datasets, the built-in corpus."""
