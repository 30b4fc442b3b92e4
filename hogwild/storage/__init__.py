"""Files that outlive a process: run directory, records, checkpoints, compiled code."""
