"""The outside of the house: stores, tokens, codecs, the command line; each file one technology or one duty."""
