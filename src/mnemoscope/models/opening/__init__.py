"""From a name to a network: hub, folder, GGUF, adapters, quantised weights, placement, fingerprints."""
