"""Verbs that begin: mine, demo, train, inspect, bench."""
