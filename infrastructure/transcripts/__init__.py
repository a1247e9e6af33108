"""Transcript codecs: one file a wire format."""
