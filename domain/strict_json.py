"""JSON as the ledger takes it: what cannot be carried is rejected by name, when it comes in."""
