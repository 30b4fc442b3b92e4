"""One module per kind of fault; each has `run(seed, count, folder) -> Tally`."""
