"""From hidden vectors to scores: folding, shared readouts, translators, directions that layers read."""
