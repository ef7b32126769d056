"""From a spec to rows of text: files, globs, data sets of the hub, the built-in corpus."""
