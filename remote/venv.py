"""The host's venv: its facts in one reading, its SGLang's own flags, and work by hand in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from remote.config import HostSettings
from remote.core import environment, host_facts
from remote.core.flag_table import InstalledParser
from remote.core.host_facts import HostFacts
from remote.errors import PreflightFailed
from remote.host import Host, Request

_PARSER_SCRIPT = Path(__file__).parent / "payload" / "parser_flags.py"
_BENCH_SCRIPT = _PARSER_SCRIPT.with_name("bench_flags.py")


def survey(host: Host, settings: HostSettings, *, ask_gpus: bool = True) -> HostFacts:
    """Read all that a deploy needs to know, in one round trip."""
    return host_facts.read(survey_request(settings, ask_gpus=ask_gpus).of(host))


def survey_request(settings: HostSettings, *, ask_gpus: bool = True) -> Request:
    """What `survey` asks."""
    return Request(
        "facts.read",
        {
            "venv": settings.venv,
            "cuda_home": settings.cuda_home,
            "state": settings.state,
            "model": settings.model,
            "port": settings.port,
            "ask_gpus": ask_gpus,
            "variables": _own_variables(settings),
        },
    )


def _own_variables(settings: HostSettings) -> dict[str, str]:
    """What the host's entry sets for every server."""
    return {name: value for name, value in settings.overrides.env.items() if value is not None}


def require_sglang(facts: HostFacts, settings: HostSettings) -> None:
    """Refuse a venv in which SGLang can't run, saying which interpreter was looked at.

    Raises:
        PreflightFailed: torch or SGLang isn't installed there.
    """
    for name in ("torch", "sglang"):
        if facts.version(name) is None:
            raise PreflightFailed(
                f"no {name} in the venv {settings.venv}",
                host=settings.name,
                evidence=[
                    f"interpreter {facts.python} (Python {facts.python_version})",
                    f"packages in {facts.site_packages or 'no site-packages folder'}",
                ],
                hint=f"point hosts.{settings.name}.venv at the venv that has it, or install it:"
                f" {facts.python} -m pip install {name}",
            )


def installed_parser(
    host: Host, settings: HostSettings, tell: Callable[[str], None]
) -> InstalledParser:
    """The flags that the installed SGLang takes, from its own parser.

    Kept on the host by the venv's identity, for importing SGLang takes from seconds to minutes.

    Raises:
        PreflightFailed: SGLang's argument parser can't be imported there.
    """
    tell("asking the installed SGLang which flags it takes")
    answer = _parsed(host, settings, parser_request(settings), "launch_server")
    return InstalledParser.from_answer(answer)


def bench_flags(
    host: Host, settings: HostSettings, tell: Callable[[str], None]
) -> Mapping[str, Mapping[str, Any]]:
    """The flags that the installed bench client takes, from its own parser; kept as those are.

    Raises:
        PreflightFailed: it doesn't answer.
    """
    tell("asking the installed bench client which flags it takes")
    answer = _parsed(host, settings, parser_request(settings, _BENCH_SCRIPT), "bench_serving")
    found: Mapping[str, Mapping[str, Any]] = answer["flags"]
    return found


def parser_request(settings: HostSettings, script: Path = _PARSER_SCRIPT) -> Request:
    """What asks a parser that is installed there for its flags; ``script`` prints them."""
    fixed = environment.fixed(settings.venv, settings.cuda_home)
    return Request(
        "facts.parser",
        {
            "venv": settings.venv,
            "state": settings.state,
            "env": {**fixed, **_own_variables(settings)},
        },
        script.read_bytes(),
    )


def _parsed(
    host: Host, settings: HostSettings, request: Request, program: str
) -> Mapping[str, Any]:
    answer = request.of(host)
    if "parser" not in answer:
        raise PreflightFailed(
            f"SGLang's {program} does not tell its flags: {answer['error']}",
            host=settings.name,
            evidence=answer["evidence"],
            hint=f"try by hand: inv run --host {settings.name} 'python -m sglang.{program} --help'",
        )
    parser: Mapping[str, Any] = answer["parser"]
    return parser


def by_hand(
    host: Host, settings: HostSettings, command: str | None, *, terminal: bool
) -> list[str]:
    """The command that runs ``command`` (or a shell) in exactly the environment of the runs.

    Raises:
        PreflightFailed: the venv's interpreter is not there; another Python would run instead.
    """
    host.call("facts.python")
    fixed = environment.fixed(settings.venv, settings.cuda_home)
    unset = [word for name in environment.UNSET for word in ("-u", name)]
    variables = [f"{name}={value}" for name, value in fixed.items()]
    shell = ["bash", "--norc", "--noprofile"]
    if command is not None:
        inner = [*shell, "-c", command]
    else:
        inner = [*shell, "-i"] if terminal else shell
    # The outer shell lives on where the inner one is killed, and gives 128 + signal for it.
    return ["sh", "-c", '"$@"; exit "$?"', "sh", "env", *unset, *variables, *inner]
