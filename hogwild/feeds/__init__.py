"""Batches in reused buffers, from data in memory, from a ring, from packed records or to a device."""
