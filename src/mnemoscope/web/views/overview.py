"""The data of the overview: what was mined."""

from typing import Any

from mnemoscope.web.site import Site


def overview_view(site: Site) -> dict[str, Any]:
    """Model, text, sizes."""
    manifest = site.atlas.manifest
    return {
        "model": {name: manifest["model"].get(name) for name in ("spec", "revision", "fingerprint")},
        "text": {name: manifest["corpus"].get(name) for name in ("spec", "fingerprint")},
        "layers": [{"layer": layer, "memories": site.atlas.memories(layer)} for layer in site.atlas.layers],
    }
