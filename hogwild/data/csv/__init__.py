"""Comma-separated tables of any size."""
