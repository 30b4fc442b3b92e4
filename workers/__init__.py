"""What runs inside, or watches over, the worker processes of one job. What they share is in `hogwild/`."""
