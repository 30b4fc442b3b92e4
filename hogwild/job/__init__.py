"""The objects of a job, built from its checked job file."""
