"""Recorded turns shipped for the demo, each with the source note it came with."""
