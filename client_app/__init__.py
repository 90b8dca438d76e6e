"""The client's half: answers queries, trains its own model, evaluates it."""
