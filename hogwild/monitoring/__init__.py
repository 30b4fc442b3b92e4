"""Monitoring of a running job: one view of it, the terminal, Prometheus, TensorBoard, the profile."""
