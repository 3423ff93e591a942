"""What a deploy is going to do: decided from what is wanted and what the host is, before anything
is touched.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from remote import patch_sets, patching, profile, rendering, venv
from remote.clock import Clock
from remote.config import HostSettings
from remote.core import doctor, environment, flags, secret_values, start_identity
from remote.core.checks import Level, Line, Start
from remote.core.flag_table import InstalledParser
from remote.core.flags import FlagPlan, ServerAddress
from remote.core.host_facts import HostFacts, RunState
from remote.core.loopback import is_loopback
from remote.core.scrubbing import Scrubber
from remote.core.secret_values import Secrets
from remote.core.shell import masked, masked_env, masked_setting
from remote.errors import ConfigError, PreflightFailed
from remote.host import Host, Request
from remote.host_lock import whoami
from remote.patch_sets import PatchSet
from remote.patching import PatchPlan, PatchView
from remote.profile import Profile
from remote.store import new_run_id

Tell = Callable[[str], None]


@dataclass(frozen=True)
class PatchChoice:
    """Which patch sets a deploy wants: the profile's, unless the user named some.

    Attributes:
        named: instead of the profile's.
        added: on top of those.
        bare: none of the profile's.
    """

    named: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    bare: bool = False


@dataclass(frozen=True)
class Plan:
    """Everything a deploy is going to do, decided before anything is touched.

    ``unchanged`` is the running server that is already what is wanted; ``stops`` are the runs of
    this tool that make way; ``note`` says why it is tried.
    """

    run: str
    profile: Profile
    sets: tuple[str, ...]
    choice: PatchChoice
    settings: HostSettings
    facts: HostFacts
    flags: FlagPlan
    environment: dict[str, str]
    script: str
    patches: PatchPlan
    seen: PatchView
    fingerprint: str
    stops: tuple[RunState, ...]
    unchanged: RunState | None
    warnings: tuple[str, ...]
    note: str = ""
    secrets: Secrets = field(default_factory=Secrets)

    def record(self) -> dict[str, Any]:
        """What is kept with the run, on the host and here; secrets masked."""
        scrubber = Scrubber(self.settings.secrets)
        scrubber.learn(self.secrets.values)
        secret = _secret_names(self.settings, self.profile)
        script = start_identity.script_identity(scrubber.text(self.script), self.run)
        digests = {patch.name: patch.digest for patch in self.patches.sets}
        found = start_identity.fingerprint(self.facts, digests)
        return {
            "profile": self.profile.name,
            "sets": [masked_setting(word, secret) for word in self.sets],
            "patch_choice": asdict(self.choice),
            "argv": masked(self.flags.argv, secret),
            "decisions": [decision.as_dict() for decision in self.flags.decisions],
            "environment": masked_env(self.environment, secret),
            "patches": list(self.patches.names),
            "fingerprint": self.fingerprint,
            "note": scrubber.text(self.note),
            "script_identity": script,
            "environment_fingerprint": found,
            "start_identity": start_identity.identity(self.settings.name, script, found),
            "identity": self.facts.identity,
            "versions": {
                name: found["version"] for name, found in sorted(self.facts.distributions.items())
            },
            "venv": self.settings.venv,
            "port": self.settings.port,
            "ready_timeout_s": self.profile.ready_timeout_s,
            **whoami(),
        }


def files(count: int) -> str:
    """A number of files, in words."""
    return "1 file" if count == 1 else f"{count} files"


@dataclass(frozen=True)
class Wish:
    """What a user wants, before the host is asked: read from files here.

    ``by_profile`` are the profile's patch sets, ``named`` the user's own.
    """

    profile: Profile
    sets: tuple[str, ...]
    choice: PatchChoice
    by_profile: tuple[PatchSet, ...]
    named: tuple[PatchSet, ...]

    @property
    def patches(self) -> tuple[PatchSet, ...]:
        return (*self.by_profile, *self.named)


def wish(
    settings: HostSettings,
    folders: Sequence[Path],
    name: str,
    sets: Sequence[str],
    choice: PatchChoice,
) -> Wish:
    """Read a profile and the patch sets that it, or the user, wants.

    Raises:
        ConfigError: the profile, a patch set or a setting is wrong.
    """
    chosen = profile.load(name, folders, settings, sets)
    by_profile = () if choice.bare or choice.named else chosen.patches
    return Wish(
        chosen,
        tuple(sets),
        choice,
        tuple(patch_sets.load(patch, folders) for patch in by_profile),
        tuple(patch_sets.load(patch, folders) for patch in (*choice.named, *choice.added)),
    )


def reading(settings: HostSettings, wanted: Wish) -> list[Request]:
    """What `plan` is going to ask, in its order."""
    return [
        venv.survey_request(settings),
        venv.parser_request(settings),
        patching.look_request(settings, wanted.patches),
    ]


def plan(
    host: Host,
    settings: HostSettings,
    folders: Sequence[Path],
    wanted: Wish,
    clock: Clock,
    tell: Tell,
) -> Plan:
    """Read the host and decide; changes nothing there but the tool's own cache.

    Raises:
        ConfigError: a template or a setting is wrong.
        PreflightFailed: the host lacks something the start needs.
        PatchRefused: a patch doesn't fit what is installed.
    """
    chosen, choice, name = wanted.profile, wanted.choice, wanted.profile.name
    tell("reading the host")
    facts = venv.survey(host, settings)
    venv.require_sglang(facts, settings)
    parser = venv.installed_parser(host, settings, tell)
    flag_plan = flags.plan(
        chosen.want,
        chosen.flags,
        parser,
        settings.unavailable,
        ServerAddress(facts.model_path, settings.bind, settings.port),
        host=settings.name,
    )
    seen = patching.view(host, settings, wanted.patches)
    patch_plan = patching.plan(wanted.by_profile, wanted.named, facts, seen)
    run = new_run_id(name, clock.wall_s())
    fixed = environment.fixed(settings.venv, settings.cuda_home)
    folder = _run_folder(settings, facts, run)
    words, secrets = _divided(settings, chosen, flag_plan.argv, parser, folder)
    script = rendering.launch_script(
        folders,
        run=run,
        profile=name,
        run_folder=folder,
        venv=settings.venv,
        fixed_env=fixed,
        server_env={
            name: value
            for name, value in chosen.environment.items()
            if name not in secrets.environment
        },
        argv=words,
        secrets=secrets,
    )
    full_environment = environment.recorded(fixed, chosen.environment)
    fingerprint = _fingerprint(name, flag_plan, full_environment, facts, patch_plan)
    living = tuple(found for found in facts.runs if found.alive)
    start = Start.from_plan(settings.name, settings.port, flag_plan.argv, full_environment)
    found = doctor.before_start(facts, start)
    _preflight(found, settings)
    _refuse_open_door(settings, flag_plan.argv)
    unchanged = None
    if len(living) == 1 and living[0].state in ("ready", "starting") and not patch_plan.steps:
        unchanged = living[0] if living[0].record.get("fingerprint") == fingerprint else None
    return Plan(
        run=run,
        profile=chosen,
        sets=wanted.sets,
        choice=choice,
        settings=settings,
        facts=facts,
        flags=flag_plan,
        environment=full_environment,
        script=script,
        patches=patch_plan,
        seen=seen,
        fingerprint=fingerprint,
        stops=living,
        unchanged=unchanged,
        warnings=(*_warnings(facts, seen, found), *_shown_secrets(words)),
        secrets=secrets,
    )


def _secret_names(settings: HostSettings, chosen: Profile) -> Callable[[str], bool]:
    """Whether a variable or flag holds a secret: told by its name, or by where it came from."""
    scrubber = Scrubber(settings.secrets)
    named = chosen.secret_env | chosen.secret_flags
    return lambda name: scrubber.is_secret(name) or name.lstrip("-") in named


def _divided(
    settings: HostSettings,
    chosen: Profile,
    argv: Sequence[str],
    parser: InstalledParser,
    folder: str,
) -> tuple[list[str | None], Secrets]:
    """The command line without its secrets, and all the secrets of the start."""
    secret = _secret_names(settings, chosen)
    by_file = "config" in parser.flags and "--config" not in argv
    words, of_flags = secret_values.divided(argv, secret, by_file=by_file)
    if of_flags.flags:
        words += ["--config", posixpath.join(folder, secret_values.CONFIG_FILE)]
    variables = {n: value for n, value in chosen.environment.items() if value and secret(n)}
    return words, replace(of_flags, environment=variables)


def _shown_secrets(words: Sequence[str | None]) -> list[str]:
    """What to say of secrets that SGLang takes from its command line only."""
    return [
        f"{flag} stands on the server's command line, where everybody on the host can read it:"
        " its value can't go into SGLang's --config file"
        for flag, value in pairwise(words)
        if value is None
    ]


def _refuse_open_door(settings: HostSettings, argv: Sequence[str]) -> None:
    """Refuse a server that the network reaches and that asks nobody for a key.

    Raises:
        ConfigError: it is one.
    """
    bind = settings.bind
    keys = [key for flag, key in pairwise((*argv, "")) if flag == "--api-key"]
    keys += [word.partition("=")[2] for word in argv if word.startswith("--api-key=")]
    if any(not key.strip() for key in keys):
        raise ConfigError("flags.api-key is empty: the server would ask nobody for a key")
    if not is_loopback(bind) and not keys:
        raise ConfigError(
            f"hosts.{settings.name}.bind is {bind}: the network would reach a server without a key",
            host=settings.name,
            hint="give it one, flags: {api-key: {env: MY_KEY}}; or bind to 127.0.0.1 and use"
            " inv tunnel",
        )


def _run_folder(settings: HostSettings, facts: HostFacts, run: str) -> str:
    state = settings.state
    if state == "~" or state.startswith("~/"):
        state = posixpath.join(facts.raw["home"], state[2:])
    return posixpath.join(state, "runs", run)


def _fingerprint(
    name: str,
    flag_plan: FlagPlan,
    env: dict[str, str],
    facts: HostFacts,
    patch_plan: PatchPlan,
) -> str:
    """Equal for two starts of the same profile, flags, environment, packages and patches.

    The profile's name counts although two may come to the same flags on some host: a run is known
    by it.
    """
    wanted = [name, flag_plan.argv, env, facts.identity, patch_plan.names]
    return hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()


def _preflight(found: Sequence[Line], settings: HostSettings) -> None:
    """Stop at what the start would die of; the first is told in full, with what else there is.

    Raises:
        PreflightFailed: something is.
    """
    failures = [line for line in found if line.level is Level.FAILURE]
    if failures:
        first, *others = failures
        raise PreflightFailed(
            f"{first.check} {first.text}" if first.check == "port" else first.text,
            host=settings.name,
            evidence=[*first.evidence, *(f"{each.check}: {each.text}" for each in others)],
            hint=first.remedy,
        )


def _warnings(facts: HostFacts, seen: PatchView, found: Sequence[Line]) -> tuple[str, ...]:
    notes = []
    if facts.no_gpus_because:
        notes.append(f"no GPU: {facts.no_gpus_because}")
    elif not facts.nvcc:
        notes.append(f"no nvcc in {facts.cuda_home}/bin: kernels can't be built on this host")
    for file in seen.drifted:
        notes.append(f"{file.path} is no longer what this tool left there (reinstalled or edited)")
    for line in found:
        if line.level is Level.WARNING and (facts.gpus or not line.check.startswith("kernel")):
            notes.append(f"{line.check}: {line.text}")
    return tuple(notes)
