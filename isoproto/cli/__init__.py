"""The command line, `isoproto`."""
