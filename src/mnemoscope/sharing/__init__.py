"""What others open: exports in other tools' forms."""
