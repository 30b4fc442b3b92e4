"""The operating system: processes, signals, control groups, /proc, the terminal. The only Linux-specific code. Other
packages write `from hogwild import host` and `host.usable_cores()`."""

from hogwild.host.cgroups import Cores, Memory, OomKills, available_memory, describe_host, oom_kills, usable_cores
from hogwild.host.kernel_stacks import KernelThread, can_write_stacks, is_writing_stack, kernel_threads
from hogwild.host.processes import (
    affinity,
    children,
    command_line,
    cpu_s,
    describe_exit,
    descriptor_count,
    die_with_parent,
    discard_pages,
    end_group_of_the_dead,
    is_stopped,
    kill_by_pidfd,
    lead_a_group,
    lock_file,
    no_core_dumps,
    open_file_limit,
    pidfd_open,
    process_start_s,
    process_status,
    pss_bytes,
    raise_file_limit,
    raise_oom_score,
    read_ahead,
    request_stack,
    require_linux,
    set_affinity,
    wait_readable,
)
from hogwild.host.resource_tracker import ensure_resource_tracker, is_tracker_known, stop_resource_tracker
from hogwild.host.signals import (
    CHILD_SIGNALS,
    STOP_SIGNALS,
    Interrupted,
    SignalWatch,
    StopSignals,
    blocked_signals,
    end_at_second,
    raise_noted,
    raising_on_signals,
    require_main_thread,
    signal_name,
    worker_signals,
    write_stacks_to,
)
from hogwild.host.topology import Core, binding_variables, remember_affinity, restore_affinity

__all__ = [
    "CHILD_SIGNALS", "STOP_SIGNALS", "Core", "Cores", "Interrupted", "KernelThread", "Memory", "OomKills",
    "SignalWatch", "StopSignals", "affinity", "available_memory", "binding_variables", "blocked_signals",
    "can_write_stacks", "children", "command_line", "cpu_s", "describe_exit", "describe_host",
    "descriptor_count", "die_with_parent", "discard_pages", "end_at_second", "end_group_of_the_dead",
    "ensure_resource_tracker", "is_stopped", "is_tracker_known", "is_writing_stack", "kernel_threads",
    "kill_by_pidfd", "lead_a_group", "lock_file", "no_core_dumps", "oom_kills", "open_file_limit", "pidfd_open",
    "process_start_s", "process_status", "pss_bytes", "raise_file_limit", "raise_noted", "raise_oom_score",
    "raising_on_signals", "read_ahead", "remember_affinity", "request_stack", "require_linux",
    "require_main_thread", "restore_affinity", "set_affinity", "signal_name", "stop_resource_tracker",
    "usable_cores", "wait_readable", "worker_signals", "write_stacks_to",
]  # fmt: skip
