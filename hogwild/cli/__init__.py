"""The command line: arguments in, lines out, exit status."""
