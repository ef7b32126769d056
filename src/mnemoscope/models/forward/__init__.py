"""Running a model: reading and changing what it computes, attention, parts of a forward."""
