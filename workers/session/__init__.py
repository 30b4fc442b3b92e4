"""The state of a running job apart from its processes, and its records."""
