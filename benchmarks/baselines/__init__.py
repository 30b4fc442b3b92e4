"""The baselines that we measure against, written as well as we can."""
