"""Pause an agent's turn for a person, redeem the answer exactly once, and prove it years later."""
