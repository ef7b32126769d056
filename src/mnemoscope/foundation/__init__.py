"""Parts that every room may use: files, progress, caching, formatting, intervals, names of memories, options,
resources."""
