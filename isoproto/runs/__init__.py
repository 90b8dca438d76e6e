"""What a run leaves on disk, and the figures that are worked out from it."""
