"""Ranks among each other: ports, peer access, NCCL, waiting for one another."""

from __future__ import annotations

from remote.core.phases import Phase
from remote.core.rules.model import (
    CAPTURING,
    STARTING,
    Confidence,
    Rule,
    Sign,
    Where,
    during,
)

PORT = Rule(
    kind="port_in_use",
    cause="A port is held by another process: {what}.",
    signs=(
        Sign(
            r"(?P<what>.*(?:EADDRINUSE|[Aa]ddress already in use|\[Errno 98\]).*"
            r"|.*_port at \S+ is not available.*|.*[Pp]ort \d+ is (?:already|not available).*)",
            Where.ANYWHERE,
            unless=r"\[c10d\]|[Tt]rying (?:the )?(?:next|another)",
        ),
    ),
    advice=(
        "`inv status` names the owner of the server's port; `inv stop --pid N --yes` stops a"
        " foreign server",
        "the HTTP, distributed, metrics and internal ports differ; one inside"
        " net.ipv4.ip_local_port_range can be taken by any outgoing connection",
    ),
    taken_for={
        "distributed_hang": "the port was refused; nothing was being waited for",
        "insufficient_evidence": "lost connections of the other ranks are what followed",
        "warmup_request_failed": "the warm-up reached whatever holds the port, or nobody",
    },
)

DEVICES = Rule(
    kind="more_ranks_than_gpus",
    cause="There are more ranks than devices for them: {what}.",
    signs=(
        Sign(r"(?P<what>.*invalid device ordinal.*)", Where.ANYWHERE),
        Sign(
            r"(?P<what>.*(?:Not enough GPUs|[Nn]umber of GPUs .*(?:less|smaller) than).*)",
            Where.ANYWHERE,
        ),
        Sign(
            r"(?P<what>.*tp_size \d+ should be smaller than or equal to number of numa node[^.]*)",
        ),
    ),
    advice=(
        "`inv status` counts the GPUs; take as many ranks:"
        " `inv deploy PROFILE --set tensor_parallel=N`",
        "CUDA_VISIBLE_DEVICES renumbers GPUs from 0; ranks on a CPU want their cores in"
        " SGLANG_CPU_OMP_THREADS_BIND",
    ),
)

P2P = Rule(
    kind="p2p_unsupported",
    cause="These GPUs cannot reach each other's memory: {what}.",
    signs=(
        Sign(
            r"(?P<what>.*peer access is not supported.*)",
            Where.ANYWHERE,
            unless=r"Setup Custom allreduce failed|To silence this warning",
        ),
    ),
    advice=(
        "switch the custom all-reduce off: `--disable-custom-all-reduce` in the profile's flags",
    ),
    taken_for={
        "nccl_init_error": "NCCL was not involved; the custom all-reduce was being set up",
    },
)

NCCL = Rule(
    kind="nccl_init_error",
    cause="NCCL failed: {what}.",
    signs=(
        Sign(r"(?P<what>Error while creating shared memory segment.*)", Where.ANYWHERE),
        Sign(
            r"(?P<what>NCCL error:? .*|.*ncclSystemError.*|.*ncclInternalError.*"
            r"|.*ncclUnhandledCudaError.*|.*ncclInvalidUsage.*)",
            Where.ANYWHERE,
            unless=r"illegal memory access|device-side assert|Watchdog caught|Connection closed by",
        ),
        Sign(r"(?P<what>.*(?:ncclMemoryPoolAlloc|addProxyOpIfNeeded).*)", Where.LINE),
        Sign(
            r"(?P<what>.*[Ee]xit(?:ed with)? (?:an )?(?:exit )?code:? ?-?11\b.*"
            r"|.*\(exit code: -11\).*)",
            Where.LINE,
            alone=True,
            phases=STARTING,
            confidence=Confidence.MEDIUM,
        ),
        Sign(
            r"(?P<what>Fatal Python error: Segmentation fault)",
            Where.LINE,
            alone=True,
            phases=STARTING,
            confidence=Confidence.LOW,
        ),
    ),
    advice=(
        "a shared memory segment: give the container more of it (`--shm-size`, `--ipc=host`);"
        " `inv run 'df -h /dev/shm'`",
        "else start once with NCCL_DEBUG=INFO:"
        " `inv deploy PROFILE --set env.NCCL_DEBUG=INFO`, and read the last WARN line",
    ),
    taken_for={
        "p2p_unsupported": "no peer access was refused",
        "collective_timeout": "the call failed at once; nothing timed out",
        "host_oom_kill": "a segmentation fault is no kill for memory",
    },
)

TIMEOUT = Rule(
    kind="collective_timeout",
    cause="A rank waited for others until its time was up: {what}.",
    signs=(
        Sign(
            r"(?P<what>.*Watchdog caught collective operation timeout.*"
            r"|.*Timed out waiting \d+ ?ms.*"
            r"|.*wait timeout after \d+ ?ms.*|.*possible application crash on rank \d+.*"
            r"|.*start-?up timeout.*|.*watchdog got stuck for \d+ seconds.*"
            r"|.*Socket Timeout.*|.*timed out after \d+ seconds? waiting for"
            r" (?:clients|workers).*|.*Timed out after \d+ seconds waiting for clients.*)",
            Where.ANYWHERE,
        ),
    ),
    advice=(
        "look at the rank or node that did NOT time out: it crashed, or still builds kernels",
        "`inv watch` shows compilers at work; a slow build on one rank is the usual reason",
    ),
    taken_for={
        "distributed_hang": "the wait ended with an error of its own",
        "illegal_memory_access": "no kernel failed on the rank that reports",
    },
)

HANG = Rule(
    kind="distributed_hang",
    cause="The ranks wait for each other and nothing is printed any more: {what}.",
    signs=(
        Sign(
            r"(?P<what>.*[Ww]atchdog timeout.*)",
            Where.LINE,
            alone=True,
            phases=during(Phase.DISTRIBUTED, Phase.WEIGHTS, Phase.KV_POOL, *CAPTURING),
        ),
        Sign(
            r"(?P<what>.*[Ee]xit(?:ed with)?(?: an exit)? code:? ?-?9\b.*|.*\(exit code: -9\).*)",
            Where.LINE,
            alone=True,
            phases=during(Phase.DISTRIBUTED),
            confidence=Confidence.MEDIUM,
        ),
    ),
    advice=(
        "`inv diagnose` on the log of every node: the rank that is missing, or behind, is the one",
        "try NCCL_P2P_DISABLE=1, the right NCCL_SOCKET_IFNAME, and without the custom all-reduce",
    ),
    taken_for={
        "jit_lock_hang": "no kernel was being loaded",
        "collective_timeout": "nothing timed out by itself",
        "host_oom_kill": "an exit -9 while ranks connect is SGLang's own watchdog",
    },
)
