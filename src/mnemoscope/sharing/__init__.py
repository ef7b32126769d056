"""What others open: an atlas or an answer, in the forms of other tools and on the hub."""
