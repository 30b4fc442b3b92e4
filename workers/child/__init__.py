"""Code that runs inside a worker, a loader, a reader or the owner of a GPU."""
