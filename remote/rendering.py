"""Templates to text: nothing undefined passes, and what a template prints is quoted for a shell.

Every ``{{ … }}`` comes out as one quoted word, whether or not the template's author thought of
it; the filters below are the only other ways a value can come out.

=============  =====================================================================
``quote``      one word for a shell (what happens anyway, said aloud)
``words``      a list as quoted words on one line
``assign``     ``NAME`` for the left side of an assignment, refused if it is no name
``comment``    the rest of a comment line: control characters taken out, nothing quoted
=============  =====================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote.core.environment import UNSET
from remote.core.flags import flag_lines
from remote.core.nearest import did_you_mean
from remote.core.secret_values import ENV_FILE, Secrets, refuse_template
from remote.core.shell import quote, variable_name
from remote.errors import ConfigError
from remote.payload.procs import RUN_VARIABLE

if TYPE_CHECKING:
    import jinja2

#: Bash refuses an assignment to some of these and makes up the others' values itself.
_OF_BASH = frozenset(
    {
        "BASHOPTS",
        "BASHPID",
        "BASH_ARGV0",
        "BASH_COMMAND",
        "BASH_SUBSHELL",
        "BASH_VERSINFO",
        "DIRSTACK",
        "EPOCHREALTIME",
        "EPOCHSECONDS",
        "EUID",
        "FUNCNAME",
        "GROUPS",
        "HISTCMD",
        "LINENO",
        "PPID",
        "RANDOM",
        "SECONDS",
        "SHELLOPTS",
        "SHLVL",
        "SRANDOM",
        "UID",
        "_",
    }
)
#: SPT_NOENV: setproctitle would overwrite /proc/PID/environ, where RUN_VARIABLE is looked for.
_MARKS = {"SPT_NOENV": "1", "PYTHONUNBUFFERED": "1"}

#: The start script's template.
_LAUNCH = "launch.sh.j2"

_UNDEFINED_NAME = re.compile(r"'([^']+)' is undefined")


class _Ready(str):
    """Text that a filter has made fit to stand in a script."""


def render(template: str, folders: Sequence[Path], values: Mapping[str, object]) -> str:
    """The template's text with these values.

    Args:
        template: its file name, looked for in ``folders`` in order.
        values: what it may name.

    Raises:
        ConfigError: no such template, an error in it, a name that is undefined, or a value that
            can't stand in a script; with the template's name and line.
    """
    import jinja2

    try:
        return _environment(tuple(folders)).get_template(template).render(values)
    except jinja2.TemplateNotFound as missing:
        known = sorted({path.name for folder in folders for path in folder.glob("*.j2")})
        raise ConfigError(
            f"no template {missing.name!r}{did_you_mean(str(missing.name), known)}",
            evidence=[str(folder) for folder in folders],
        ) from missing
    except jinja2.TemplateSyntaxError as wrong:
        raise ConfigError(
            f"template {wrong.name or template}, line {wrong.lineno}: {wrong.message}",
            evidence=_quoted_line(wrong.filename, wrong.lineno),
        ) from wrong
    except jinja2.UndefinedError as undefined:
        raise _undefined(template, undefined, values) from undefined
    except ConfigError as refused:
        name, line, evidence = _place(template, refused)
        raise ConfigError(
            f"template {name}, line {line}: {refused.message}", evidence=evidence
        ) from refused


def strict_environment(
    folders: Sequence[Path],
    *,
    autoescape: bool = False,
    finalize: Callable[..., Any] | None = None,
) -> jinja2.Environment:
    """Jinja2 as all templates here are read: what is undefined is an error, blocks leave no lines.

    Args:
        folders: where templates are looked for, in order.
        autoescape, finalize: as Jinja2 has them.
    """
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader([str(folder) for folder in folders]),
        undefined=jinja2.StrictUndefined,
        autoescape=autoescape,
        finalize=finalize,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@lru_cache(maxsize=1)
def _environment(folders: tuple[Path, ...]) -> jinja2.Environment:
    environment = strict_environment(folders, finalize=_finalize)
    environment.filters.update(quote=_quote, words=_words, assign=_assign, comment=_comment)
    return environment


def prepare(folders: Sequence[Path]) -> None:
    """Import and compile what `launch_script` needs, for whoever waits for a host meanwhile."""
    import jinja2

    # What is wrong with it is told when it is rendered.
    with suppress(jinja2.TemplateError, OSError):
        _environment(tuple(folders)).get_template(_LAUNCH)


def launch_script(
    folders: Sequence[Path],
    *,
    run: str,
    profile: str,
    run_folder: str,
    venv: str,
    fixed_env: Mapping[str, str],
    server_env: Mapping[str, str],
    argv: Sequence[str | None],
    secrets: Secrets | None = None,
) -> str:
    """The bash script that is left on the host and starts the server in its place.

    Args:
        run: the run's id.
        run_folder: absolute, on the host; the script's pid is written there.
        fixed_env: PATH, VIRTUAL_ENV, CUDA_HOME (:func:`remote.core.environment.fixed`).
        server_env: the server's own variables, set over the fixed ones.
        argv: the words after ``-m sglang.launch_server``; None is the next of the secrets' words.
        secrets: what the script reads from files beside it.

    Raises:
        ConfigError: a variable that a script can't set, and whatever :func:`render` raises.
    """
    secrets = secrets or Secrets()
    for name in (*server_env, *secrets.environment):
        if name in _OF_BASH or name == RUN_VARIABLE:
            owner = "bash" if name in _OF_BASH else "the run's mark"
            raise ConfigError(f"{name} belongs to {owner}: no variable of the server's own")
    values: dict[str, object] = {
        "run": run,
        "profile": profile,
        "run_folder": run_folder,
        "venv": venv,
        "unset": UNSET,
        "fixed_env": {**fixed_env, **_MARKS},
        "server_env": server_env,
        "run_env": {RUN_VARIABLE: run},
        "python": f"{venv}/bin/python",
        "flags": flag_lines(_with_variables(argv, secrets)),
        "secrets_file": ENV_FILE if secrets.environment or secrets.words else "",
    }
    script = render(_LAUNCH, folders, values)
    refuse_template(script, secrets)
    return script


def _with_variables(argv: Sequence[str | None], secrets: Secrets) -> list[str]:
    """The words, and for each that is secret the variable that holds it, expanded by the shell."""
    names = iter(secrets.words)
    return [_Ready(f'"${next(names)}"') if word is None else word for word in argv]


def _finalize(value: object) -> str:
    """What ``{{ … }}`` prints: one quoted word, unless a filter has seen to it."""
    return value if isinstance(value, _Ready) else _quote(value)


def _quote(value: object) -> _Ready:
    if isinstance(value, _Ready):
        return value
    if isinstance(value, (Mapping, list, tuple, set)) or value is None:
        raise ConfigError(f"a {type(value).__name__} can't be printed as one word: name its parts")
    return _Ready(quote(str(value)))


def _words(values: Sequence[object]) -> _Ready:
    return _Ready(" ".join(_quote(value) for value in values))


def _assign(name: object) -> _Ready:
    return _Ready(variable_name(str(name)))


def _comment(value: object) -> _Ready:
    return _Ready("".join(mark if mark.isprintable() else "?" for mark in str(value)))


def _undefined(
    template: str, error: jinja2.UndefinedError, values: Mapping[str, object]
) -> ConfigError:
    match = _UNDEFINED_NAME.search(error.message or "")
    near = did_you_mean(match[1], values) if match else ""
    name, line, evidence = _place(template, error)
    return ConfigError(
        f"template {name}, line {line}: {error.message}{near}",
        evidence=evidence,
        hint=f"it may use {', '.join(sorted(values))}",
    )


def _place(template: str, error: BaseException) -> tuple[str, int, list[str]]:
    """Template, line and quoted line where the error was raised.

    Jinja2 makes the traceback's frames stand for the template's own lines.
    """
    name, line, evidence = template, 0, list[str]()
    frame = error.__traceback__
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if file.endswith(".j2"):
            name, line = Path(file).name, frame.tb_lineno
            evidence = _quoted_line(file, line)
        frame = frame.tb_next
    return name, line, evidence


def _quoted_line(file: str | None, line: int) -> list[str]:
    if file is None or not Path(file).is_file():
        return []
    lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    return [f"{file}:{line}: {lines[line - 1].strip()}"] if 0 < line <= len(lines) else []
