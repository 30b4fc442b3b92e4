"""Files that outlive a process: the run directory, records, checkpoints, compiled code."""
