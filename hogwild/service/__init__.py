"""The training service: queued jobs on one machine, each a process of its own (`hogwild train`), watched from their run
directories. One thread decides and writes the store (`loop.py`); HTTP only asks it. docs/architecture.md has the
picture."""
