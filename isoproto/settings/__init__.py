"""Declare the settings of a run, in sections, one for each concern. Nothing heavy is imported."""
