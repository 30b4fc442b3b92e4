"""The loop of the supervisor: births, deaths, pauses, loaders; and `procs: 0`, without a child."""
