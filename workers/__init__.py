"""The worker processes of one job and their supervisor. Code that both share is in `hogwild/`."""
