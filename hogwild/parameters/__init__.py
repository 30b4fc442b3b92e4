"""The model in shared memory: layout, optimizer state, buffers, structure, exchange."""
