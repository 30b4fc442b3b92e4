"""What we measure against, written as well as we can."""
