"""A finished run put to use: load, predict, evaluate again, recommend, sample."""
