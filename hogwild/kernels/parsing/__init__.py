"""Compiled kernels that parse rows of libsvm."""
