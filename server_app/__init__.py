"""The server's half: settings in, strategy started, report out."""
