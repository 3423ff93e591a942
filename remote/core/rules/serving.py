"""Failures of a server that is up, or about to be."""

from __future__ import annotations

from dataclasses import replace

from remote.core.rules.model import Confidence, Rule, Sign, Where

GRAMMAR = Rule(
    kind="grammar_backend",
    cause="A client's schema or grammar made the grammar backend fail: {what}.",
    signs=(
        Sign(
            r"(?P<what>.*(?:xgrammar|JSONSchemaFormat|compile_json_schema|grammar future"
            r"|llguidance|outlines).*)",
            Where.EXCEPTION,
            unless=r"No module named|cannot import|PackageNotFound",
        ),
        Sign(
            r"(?P<what>(?:sglang/srt/)?constrained/\S+|xgrammar/\S+|llguidance/\S+|outlines\w*/\S+)",
            Where.FRAMES,
            frames=r"event_loop|get_next_batch|handle_|run_batch|dispatch|move_ready",
        ),
    ),
    advice=(
        "upgrade SGLang or take another backend: `--grammar-backend` in the profile's flags",
        "find the request that carried the schema in the access log before the crash",
    ),
    taken_for={"serving_oom": "memory was not short; a request's schema was"},
)

WARM_UP = Rule(
    kind="warmup_request_failed",
    cause="The server's own first request to itself failed: {what}.",
    signs=(
        Sign(r"(?P<what>.*Response \[(?:50[0-9]|40[0-9])\].*)"),
        Sign(r"(?P<what>.*warmup error.*)", Where.ANYWHERE),
        Sign(r"(?P<what>GET http://0\.0\.0\.0\S+ HTTP/1\.1\" 40[37].*)", Where.LINE),
        Sign(r"(?P<what>.*)", frames=r":_execute_server_warmup$", confidence=Confidence.MEDIUM),
    ),
    advice=(
        "502, 503 or 403: a proxy answered; add 0.0.0.0,127.0.0.1 to no_proxy for the server:"
        " `inv deploy PROFILE --set env.no_proxy=0.0.0.0,127.0.0.1,localhost`",
        "connection refused: look for an earlier crash",
    ),
    taken_for={
        "host_oom_kill": "the kill at the end is the server's own",
        "port_in_use": "the port was bound",
    },
)

WATCHDOG = Rule(
    kind="watchdog_or_health",
    cause="The scheduler made no progress for longer than its watchdog allows: {what}.",
    signs=(Sign(r"(?P<what>.*[Ww]atchdog timeout.*)", Where.LINE, alone=True),),
    advice=(
        "read the py-spy stack of each rank's main thread: `inv pull` brings them",
        "in torch/_inductor: its compile workers do not answer; let the rank compile by itself:"
        " `inv deploy PROFILE --set env.TORCHINDUCTOR_COMPILE_THREADS=1`",
        "a health timeout during a long prefill is a false alarm: lengthen the probe",
    ),
    taken_for={
        "distributed_hang": "the ranks had found each other",
        "collective_timeout": "no collective reported a timeout",
    },
)

#: Apart from the watchdog: a server that was ready survives a failed check.
HEALTH = replace(
    WATCHDOG,
    signs=(
        Sign(
            r"(?P<what>Health check failed.*|.*/health 200, requests hang.*)",
            Where.LINE,
            alone=True,
        ),
    ),
)

#: Seen from outside: nothing in the log tells of it.
STUCK = replace(
    WATCHDOG,
    cause="The server is up and answers no generation; its log says nothing of it ({what}).",
    signs=(),
)
