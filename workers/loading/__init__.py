"""Data that is read or parsed before training, the trial of the job's code, and predictions by several processes."""
