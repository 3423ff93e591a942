"""The machine around the server: disk, permissions, signals."""

from __future__ import annotations

from remote.core.phases import Phase
from remote.core.rules.model import Confidence, Rule, Sign, Where, during

DISK = Rule(
    kind="disk_or_permission",
    cause="A file could not be written or renamed: {what}.",
    signs=(
        Sign(
            r"(?P<what>.*(?:Errno (?:13|16|28|30|122)\]|No space left|Disk quota exceeded"
            r"|Permission denied|Read-only file system|code: 28\b).*)",
            Where.ANYWHERE,
            unless=r"shared memory segment|/dev/shm|Ignore import|trying|[Ww]arning",
        ),
        Sign(r"(?P<what>.*(?:Error|No such file).*\.triton/cache.*)"),
        Sign(r"(?P<what>Stale file handle.*|.*Errno 116\].*)", Where.ANYWHERE),
    ),
    advice=(
        "`inv run 'df -h ~ /tmp'`; point TRITON_CACHE_DIR, FLASHINFER_WORKSPACE_BASE, HF_HOME and"
        " TMPDIR at a local disk with room: `inv deploy PROFILE --set env.TRITON_CACHE_DIR=…`",
        "ranks that share a cache on a network disk race: give each host its own",
    ),
    taken_for={
        "jit_build_failed": "the build's files could not be written; the code is not at fault"
    },
)

KILLED = Rule(
    kind="process_killed",
    cause="A process of the server was killed from outside with SIGKILL: {what}.",
    signs=(
        Sign(
            r"(?P<what>Subprocess \S+ \(pid=\d+\) crashed with exit code -9\b.*)",
            Where.LINE,
            alone=True,
            phases=during(Phase.SERVING, Phase.READY, Phase.HTTP, Phase.WARM_UP),
        ),
        Sign(
            r"(?P<what>.*[Ee]xit(?:ed with)?(?: an exit)? code:? ?-?9\b.*)",
            Where.LINE,
            alone=True,
            phases=during(Phase.SERVING, Phase.READY),
            confidence=Confidence.MEDIUM,
        ),
    ),
    advice=(
        "ask the kernel whether it was memory: `inv run 'dmesg -T | grep -i killed'`",
        "`inv restart` starts the server again",
    ),
    taken_for={"host_oom_kill": "nothing in the log, and no word of the kernel, speaks of memory"},
)

STOPPED = Rule(
    kind="rank_stopped",
    cause="{what} is stopped (SIGSTOP, or a debugger): it lives and does nothing.",
    advice=("`inv run 'kill -CONT PID'` lets it go on; find who stopped it",),
    taken_for={"distributed_hang": "the process table says that the rank does not run"},
)
