"""Compiled kernels that read text and number ids."""
