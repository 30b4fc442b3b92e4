"""Uses of a finished run: load, predict, evaluate again, recommend, sample."""
