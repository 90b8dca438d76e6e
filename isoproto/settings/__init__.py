"""What a setting may be, and the settings in sections, one for each concern. Imports nothing heavy."""
