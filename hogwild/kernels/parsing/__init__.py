"""Compiled kernels that parse text and number ids."""
