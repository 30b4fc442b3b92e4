"""Memory regions without names, and the scoreboard that is laid out in one."""
