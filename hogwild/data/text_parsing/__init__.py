"""Text read in parallel passes, and the words in it numbered."""
