"""The loop of the supervisor: starts, deaths, pauses, loaders; and `procs: 0`, without a child."""
