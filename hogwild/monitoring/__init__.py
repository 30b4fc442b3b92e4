"""What a running job shows: one view of it, the terminal, Prometheus, TensorBoard, the profile."""
