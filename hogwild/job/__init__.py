"""From a checked job file to objects that can be trained."""
