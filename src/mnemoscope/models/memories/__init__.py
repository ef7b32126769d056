"""Kinds of feed-forward layers behind one seam: dense, gated, experts, branches."""
