"""Parallel passes over text files, and numbering of the words in them."""
