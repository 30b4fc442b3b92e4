"""Text files parsed into packed arrays, and numbering of the words in their columns."""
