"""The ways to run a federation: in one process, or on Flower's engines."""
