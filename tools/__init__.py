"""Programs for developers; not installed."""
