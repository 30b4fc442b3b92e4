"""Processes, threads and devices for this machine; measured if asked."""
