"""Tools over atlases, and perhaps a model, for agents, by the Model Context Protocol."""
