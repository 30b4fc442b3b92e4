"""Processes, threads and devices for this machine; measured on request."""
