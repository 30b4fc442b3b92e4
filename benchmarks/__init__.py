"""Measurements: ratios in one run, medians of at least three, with the machine described. See `results.py`."""
