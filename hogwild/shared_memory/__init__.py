"""Anonymous shared memory regions, and the scoreboard, which lies in one."""
