"""A host's facts judged: each check one line, ok, a warning or a failure, with its remedy.

A failure is what a start would die of. What this host merely lacks, or will do slowly, is a
warning; a host without a GPU is a healthy CPU host. `before_start` is the part that costs nothing
and stops a deploy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from remote.core import gpu_room
from remote.core.checks import Line, Start, failure, ok, warning
from remote.core.host_facts import HostFacts
from remote.core.shell import join

_MIB = 2**20
_GIB = 2**30
#: Less than this free under the state folder, and the log of a start may not fit.
_STATE_BYTES = 50 * _MIB
#: A server that logs for days.
_STATE_ROOMY_BYTES = 2 * _GIB
#: FlashInfer's kernels for one model and GPU.
_CACHE_BYTES = 500 * _MIB
_CACHE_ROOMY_BYTES = 5 * _GIB
#: A container's usual share, in which NCCL between GPUs dies of a bus error; and what is roomy.
_SHM_BYTES = 64 * _MIB
_SHM_ROOMY_BYTES = _GIB
#: The launch script raises the limit of open files to this, where it may.
_FILES = 65536
_FEW_FILES = 4096
#: The first driver branch that runs a CUDA generation at all.
_FIRST_DRIVER = {11: 450, 12: 525, 13: 580}
#: The CUDA that first knows a compute capability's generation.
_FIRST_CUDA = {"10.0": (12, 8), "10.3": (12, 9), "12.0": (12, 8), "12.1": (12, 9)}
_CLOCK_S = 5.0
_SLOW_LINK_S = 0.5
_SHOWN = 8
#: The requirements whose version decides most.
_HEAVY = (
    *("torch", "flashinfer-python", "flashinfer-cubin", "sgl-kernel", "sglang-kernel"),
    *("transformers", "xgrammar", "apache-tvm-ffi", "triton"),
)


@dataclass(frozen=True)
class Way:
    """The way to the host as it was found: seconds there and back, and how far its clock is off.

    ``unsure_s`` is how much of the offset may be the way itself.
    """

    address: str
    login: str
    host_key: str
    accepts_new_keys: bool
    round_trip_s: float
    clock_off_s: float
    unsure_s: float


@dataclass(frozen=True)
class Pin:
    """One of SGLang's own requirements on this host; ``installed`` None: it is missing."""

    name: str
    wanted: str
    installed: str | None

    def __str__(self) -> str:
        found = self.installed or "not installed"
        return f"{self.name}: {found}" + (f", SGLang wants {self.wanted}" if self.wanted else "")


@dataclass(frozen=True)
class Imports:
    """What the host's own interpreter said; ``failed`` and ``missing`` by module."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    failed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    torch: Mapping[str, Any] | None = None


def read_imports(found: Mapping[str, Any], timeout_s: float) -> Imports:
    """From the answer of `payload/doctor.imports`; a module that was begun and not ended failed."""
    seconds: dict[str, float] = {}
    failed: dict[str, tuple[str, ...]] = {}
    missing: list[str] = []
    torch: Mapping[str, Any] | None = None
    begun: str | None = None
    for row in found["rows"]:
        if "torch" in row:
            torch = row["torch"]
            continue
        name = str(row["module"])
        begun = name if row["state"] == "begun" else None
        if row["state"] == "ok":
            seconds[name] = float(row["seconds"])
        elif row["state"] == "missing":
            missing.append(name)
        elif row["state"] == "failed":
            failed[name] = tuple(row["why"])
    if begun is not None or not found["rows"]:
        ended = found["ended"]
        why = f"did not end within {timeout_s:.0f} s" if ended is None else f"ended with {ended}"
        failed[begun or "python"] = (why, *found["stderr"][-2:])
    return Imports(seconds, failed, tuple(missing), torch)


def way_lines(way: Way) -> Iterator[Line]:
    """The connection: where to, how, under which rule for host keys; and the clock."""
    trip = f"{way.round_trip_s * 1000:.0f} ms there and back"
    if way.round_trip_s > _SLOW_LINK_S:
        yield warning("ssh", f"{way.address}: {trip}, {way.login}", "every task waits for it")
    else:
        yield ok("ssh", f"{way.address}: {trip}, {way.login}")
    if way.accepts_new_keys:
        yield warning(
            "host key",
            way.host_key,
            "an unknown key is accepted and recorded: once all hosts are known, take"
            " ssh.accept_new_host_keys (or StrictHostKeyChecking) back",
        )
    else:
        yield ok("host key", way.host_key)
    off = abs(way.clock_off_s)
    if off - way.unsure_s > _CLOCK_S:
        side = "ahead of" if way.clock_off_s > 0 else "behind"
        yield warning(
            "clock",
            f"the host's clock is {off:.0f} s {side} this machine's",
            "times in logs differ by that much; set one of them right (NTP)",
        )
    else:
        yield ok("clock", f"within {max(off, way.unsure_s):.1f} s of this machine's")


def before_start(facts: HostFacts, start: Start) -> list[Line]:
    """What can be judged from the facts that every plan reads; its failures stop a deploy."""
    return [
        port(facts, start),
        *(model(facts.raw["model"], start) if facts.raw["model"]["local"] else ()),
        *disks(facts, start),
        gpu_room.memory(facts, start),
        *state_folder(facts.raw.get("state_folder"), start),
    ]


def host_lines(facts: HostFacts, start: Start) -> Iterator[Line]:
    """Everything that the facts alone tell."""
    yield versions(facts)
    yield gpus(facts)
    yield toolkit(facts)
    yield from before_start(facts, start)
    if not facts.raw["model"]["local"]:
        yield from model(facts.raw["model"], start)
    yield shared_memory(facts)
    yield from limits(facts)


def versions(facts: HostFacts) -> Line:
    """The venv and what is in it."""
    names = ("torch", "sglang", "flashinfer-python", "transformers")
    found = ", ".join(f"{name} {facts.version(name)}" for name in names if facts.version(name))
    missing = [name for name in ("torch", "sglang") if facts.version(name) is None]
    text = f"Python {facts.python_version} at {facts.python}: {found or 'none of its packages'}"
    if missing:
        remedy = (
            f"{facts.python} -m pip install {' '.join(missing)}; or point hosts.…venv elsewhere"
        )
        return failure("venv", f"no {' and no '.join(missing)}; {text}", remedy)
    if facts.version("flashinfer-python") is None:
        return warning("venv", f"{text}; no FlashInfer", "needed for its kernels and its patches")
    return ok("venv", text)


def gpus(facts: HostFacts) -> Line:
    """The GPUs and their driver, as nvidia-smi has them."""
    if not facts.gpus:
        why = facts.no_gpus_because or "nvidia-smi lists none"
        broken = why.startswith("nvidia-smi failed")
        if broken:
            return failure("GPUs", why, "look at dmesg; the driver may need a reload or a reboot")
        return warning("GPUs", f"none: {why}", "a CPU host: no CUDA graphs, no NCCL, no FP4")
    kinds = {f"{gpu.name}, {gpu.memory_mib / 1024:.0f} GiB" for gpu in facts.gpus}
    text = f"{len(facts.gpus)} × {' and '.join(sorted(kinds))}, driver {facts.gpus[0].driver}"
    if len(kinds) > 1:
        return warning("GPUs", f"{text}; they are not alike", "tensor parallelism wants one kind")
    return ok("GPUs", text)


def toolkit(facts: HostFacts) -> Line:
    """CUDA's compiler, with which FlashInfer builds kernels."""
    version = facts.raw.get("cuda", {}).get("version")
    home = facts.cuda_home
    if not facts.gpus:
        return ok("CUDA", f"not needed without a GPU ({home})")
    if not facts.nvcc:
        return warning(
            "CUDA",
            f"no nvcc in {home}/bin: kernels can't be built on this host",
            "install the CUDA toolkit, or set hosts.…cuda_home; ready-made kernels"
            " (flashinfer-cubin, flashinfer-jit-cache) do without",
        )
    needed = max(_FIRST_CUDA.get(gpu.compute_capability, (0, 0)) for gpu in facts.gpus)
    numbers = _numbers(version)
    if numbers and numbers < needed:
        return failure(
            "CUDA",
            f"nvcc of CUDA {version} can't build for compute capability"
            f" {facts.gpus[0].compute_capability}",
            f"install CUDA {needed[0]}.{needed[1]} or newer and set hosts.…cuda_home",
        )
    return ok("CUDA", f"nvcc of CUDA {version or 'unknown version'} in {home}")


def torch_lines(facts: HostFacts, imports: Imports) -> Iterator[Line]:
    """What was imported, whether torch sees the GPUs, and the driver against its CUDA."""
    for name, why in imports.failed.items():
        yield failure(
            "imports",
            f"{name} can't be imported: {why[0] if why else 'no reason given'}",
            f"try by hand: inv run 'python -c \"import {name}\"'",
            *why[1:],
        )
    absent = [name for name in imports.missing if name != "flashinfer" or facts.gpus]
    for name in absent:
        show = warning if name in ("flashinfer", "sgl_kernel") else failure
        yield show("imports", f"no module {name}", f"{facts.python} -m pip install {name}")
    if not imports.failed and not absent:
        took = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in imports.seconds.items())
        yield ok("imports", took)
    if imports.torch is not None:
        yield _torch_sees(facts, imports.torch)
        yield from _driver(facts, imports.torch)


def _torch_sees(facts: HostFacts, torch: Mapping[str, Any]) -> Line:
    seen = len(torch["devices"])
    if not facts.gpus:
        return ok("torch", "a CPU build" if torch["cuda"] is None else "no GPU, as nvidia-smi says")
    if torch["cuda"] is None:
        return failure(
            "torch",
            f"is a CPU build, and the host has {len(facts.gpus)} GPUs",
            "install the CUDA build of the version that SGLang wants",
        )
    why = f": {torch['error']}" if torch.get("error") else ""
    if not seen:
        return failure(
            "torch",
            f"(CUDA {torch['cuda']}) sees no GPU of {len(facts.gpus)}{why}",
            "driver, CUDA_VISIBLE_DEVICES and the container's devices must let it",
        )
    known = torch.get("architectures") or []
    for gpu in facts.gpus:
        if known and not _runs_on(known, gpu.compute_capability):
            return failure(
                "torch",
                f"has no kernels for {gpu.name} (compute capability {gpu.compute_capability})",
                "install a torch built with a newer CUDA",
                f"built for {', '.join(known)}",
            )
    if seen != len(facts.gpus):
        return warning(
            "torch",
            f"sees {seen} of {len(facts.gpus)} GPUs",
            "CUDA_VISIBLE_DEVICES of the host's env hides some",
        )
    return ok("torch", f"(CUDA {torch['cuda']}) sees all {seen} GPUs")


def _runs_on(architectures: Sequence[str], capability: str) -> bool:
    """Whether code built for these runs there: the same generation, up to its number."""
    major, _, minor = capability.partition(".")
    if not (major.isdigit() and minor.isdigit()):
        return True
    for each in architectures:
        kind, _, number = each.partition("_")
        digits = number.rstrip("af")
        if not digits.isdigit():
            continue
        generation, step = int(digits[:-1]), int(digits[-1])
        if kind == "compute" and (generation, step) <= (int(major), int(minor)):
            return True
        if kind == "sm" and generation == int(major) and step <= int(minor):
            return True
    return False


def _driver(facts: HostFacts, torch: Mapping[str, Any]) -> Iterator[Line]:
    cuda = _numbers(torch["cuda"])
    if not facts.gpus or not cuda:
        return
    driver = facts.gpus[0].driver
    branch = driver.partition(".")[0]
    first = _FIRST_DRIVER.get(cuda[0])
    told = torch.get("driver_cuda")
    own = (told // 1000, told % 1000 // 10) if told else None
    text = f"{driver} for torch's CUDA {torch['cuda']}"
    if first is not None and branch.isdigit() and int(branch) < first:
        yield failure("driver", f"{text}: too old", f"install driver {first} or newer")
    elif own is not None and own < cuda:
        yield warning(
            "driver",
            f"{text}: it knows CUDA {own[0]}.{own[1]}",
            "runs by compatibility within one CUDA generation; kernels that come as PTX do not",
        )
    else:
        yield ok("driver", text)


def pin_line(pins: Sequence[Pin], unmet: Sequence[Pin]) -> Line:
    """What is installed against what SGLang says it was made for."""
    if not pins:
        return warning(
            "versions",
            "SGLang's own requirements are not on record",
            "an install from a wheel has them",
        )
    if not unmet:
        return ok("versions", f"all {len(pins)} of SGLang's own requirements are met")
    unmet = sorted(unmet, key=_weight)
    shown = [str(pin) for pin in unmet[:_SHOWN]]
    if len(unmet) > _SHOWN:
        shown.append(f"… and {len(unmet) - _SHOWN} more")
    exact = [f"{pin.name}{pin.wanted}" for pin in unmet if pin.installed and pin.wanted]
    remedy = f"pip install {join(exact[:_SHOWN])}" if exact else "pip install what is missing"
    count = f"{len(unmet)} of {len(pins)}"
    return warning(
        "versions",
        f"{count} of SGLang's own requirements are not met",
        f"if a start fails on an import or a kernel: {remedy}",
        *shown,
    )


def _weight(pin: Pin) -> tuple[int, bool]:
    """What kernels and models hang on comes first, then what is there in another version."""
    place = _HEAVY.index(pin.name) if pin.name in _HEAVY else len(_HEAVY)
    return place, pin.installed is None


def port(facts: HostFacts, start: Start) -> Line:
    """Who holds the server's port."""
    owner = facts.port_owner
    if owner is None:
        return ok("port", f"{start.port} is free")
    ours = {run.run for run in facts.runs if run.alive}
    if owner.run in ours:
        return ok("port", f"{start.port} is held by run {owner.run} of this tool")
    other = f"set another hosts.{start.host}.port"
    if owner.pid:
        end = f"inv stop --host {start.host} --pid {owner.pid} --yes"
        other = f"{end}, if it may go; or another hosts.{start.host}.port"
    whose = "a process that this tool did not start"
    if owner.run is not None:
        whose = (
            f"run {owner.run}, which this state folder doesn't know (another's, or it was moved)"
        )
    return failure("port", f"{start.port} is held by {whose}", other, str(owner))


def model(found: Mapping[str, Any], start: Start) -> Iterator[Line]:
    """The model's folder: is it there, and whole?

    Args:
        found: ``model`` of the facts, or `payload/doctor.whole_model`'s answer beside it.
    """
    path, files = found["path"], found.get("files")
    setting = f"hosts.{start.host}.model is a folder on the host, or a name on the hub"
    if found["local"] and not found["exists"]:
        yield failure("model", f"no model at {path}", setting)
        return
    if files is None:
        if found["local"]:
            yield warning("model", f"{path} can't be read", setting)
        else:
            yield warning(
                "model", f"{path} is a name on the hub", "the first start downloads what is missing"
            )
        return
    flaws = []
    if not files["config"]:
        flaws.append("no config.json")
    if start.tokenizer and not files["tokenizer"]:
        flaws.append("no tokenizer")
    if start.weights:
        if not files["weights"] and not files["missing"]:
            flaws.append("no weights")
        flaws += [f"missing: {name}" for name in files["missing"]]
        flaws += [f"empty: {name}" for name in files["empty"]]
        flaws += [f"cut off: {name}" for name in files["short"]]
    if flaws:
        shown = flaws[:_SHOWN] + ([f"… {len(flaws)} in all"] if len(flaws) > _SHOWN else [])
        yield failure(
            "model",
            f"the model at {path} is not complete: {flaws[0]}",
            "download or copy it again; a download that was broken off goes on where it stopped",
            *shown[1:],
        )
        return
    size = files["weight_bytes"] / _GIB
    by = f", as {files['index']} lists them" if files["index"] else ""
    counted = f"{files['weights']} files of weights, {size:.1f} GiB{by}"
    yield ok("model", f"{path}: config, tokenizer, {counted}" if start.weights else path)


def disks(facts: HostFacts, start: Start) -> Iterator[Line]:
    """Room for logs and for the kernels that are built at run time."""
    free = facts.state_free_bytes
    state = (facts.raw.get("state_folder") or {}).get("path", "the state folder")
    remedy = f"free some disk space there, or set hosts.{start.host}.state"
    if free is not None and free < _STATE_BYTES:
        yield failure("disk", f"only {free // _MIB} MiB are free for {state}", remedy)
    elif free is not None and free < _STATE_ROOMY_BYTES:
        yield warning("disk", f"{free // _MIB} MiB are free for {state}", "logs may fill it")
    elif free is not None:
        yield ok("disk", f"{free / _GIB:.0f} GiB are free for {state}")
    for cache in facts.raw.get("caches", ()):
        yield _cache(cache, bool(facts.gpus))


def _cache(cache: Mapping[str, Any], builds: bool) -> Line:
    """One kernel cache; a host without a GPU builds next to nothing."""
    what = f"kernel cache of {cache['name']}"
    free = cache["free_bytes"]
    bad = failure if builds else warning
    if not cache["writable"]:
        return bad(what, f"{cache['path']} can't be written to", "give the user leave, or move it")
    if cache["noexec"]:
        return bad(
            what,
            f"{cache['path']} lies on a file system mounted noexec: what is built can't be loaded",
            "move it by the cache's own variable in the host's env",
        )
    if free < _CACHE_BYTES:
        return bad(what, f"only {free // _MIB} MiB are free for {cache['path']}", "free some space")
    if builds and free < _CACHE_ROOMY_BYTES:
        return warning(what, f"{free // _MIB} MiB are free for {cache['path']}", "builds fill it")
    return ok(what, f"{free / _GIB:.0f} GiB are free for {cache['path']}")


def shared_memory(facts: HostFacts) -> Line:
    """/dev/shm, through which ranks talk."""
    found = facts.raw.get("shared_memory")
    if found is None:
        return warning("/dev/shm", "is not there", "ranks talk through it: mount a tmpfs on it")
    size = found["bytes"]
    text = f"{size / _GIB:.1f} GiB, {found['free_bytes'] / _GIB:.1f} free"
    remedy = "start the container with --shm-size 16g (or --ipc=host)"
    if len(facts.gpus) > 1 and min(size, found["free_bytes"]) <= _SHM_BYTES:
        return failure("/dev/shm", f"{text}: too small for {len(facts.gpus)} GPUs", remedy)
    if min(size, found["free_bytes"]) < _SHM_ROOMY_BYTES:
        return warning("/dev/shm", f"{text}: small", remedy)
    return ok("/dev/shm", text)


def limits(facts: HostFacts) -> Iterator[Line]:
    """Open files and locked memory."""
    found = facts.raw.get("limits", {})
    if "nofile" in found:
        hard = found["nofile"][1]
        text = "unlimited" if hard < 0 else str(hard)
        remedy = "raise LimitNOFILE or limits.conf: hundreds of connections need one each"
        if 0 <= hard < _FEW_FILES:
            yield failure("open files", f"at most {text}", remedy)
        elif 0 <= hard < _FILES:
            yield warning("open files", f"at most {text}", remedy)
        else:
            yield ok("open files", f"at most {text}")
    if "memlock" in found:
        soft = found["memlock"][0]
        if soft < 0 or not facts.gpus:
            size = "unlimited" if soft < 0 else f"{soft // _MIB} MiB"
            yield ok("locked memory", size)
        else:
            yield warning(
                "locked memory",
                f"at most {soft // _MIB} MiB",
                "InfiniBand and GPUDirect want it unlimited (ulimit -l)",
            )


def state_folder(found: Mapping[str, Any] | None, start: Start) -> Iterator[Line]:
    """The tool's own folder: owner, mode, and whether it can be written to."""
    if found is None:
        return
    check, path = "state folder", found["path"]
    elsewhere = f"set hosts.{start.host}.state"
    if found["kind"] == "missing":
        if found["writable"]:
            yield ok(check, f"{path} is not there yet")
        else:
            yield failure(check, f"{path} can't be made", elsewhere)
    elif found["kind"] != "folder":
        yield failure(
            check, f"{path} is a {found['kind']}, not a folder", f"move it, or {elsewhere}"
        )
    elif not found["ours"]:
        yield failure(check, f"{path} belongs to {found['owner']}", elsewhere)
    elif found["mode"] & 0o022:
        yield failure(
            check, f"others may write to {path} (mode {found['mode']:o})", f"chmod 700 {path}"
        )
    elif not found["writable"]:
        yield failure(check, f"{path} can't be written to", elsewhere)
    elif found["mode"] & 0o055:
        yield warning(
            check, f"others may read {path} (mode {found['mode']:o})", f"chmod 700 {path}"
        )
    else:
        yield ok(check, f"{path} of {found['owner']}, mode {found['mode']:o}")


def _numbers(version: str | None) -> tuple[int, int] | None:
    """Major and minor of ``12.8`` or ``12.8.1``."""
    words = (version or "").split(".")
    if len(words) < 2 or not (words[0].isdigit() and words[1].isdigit()):
        return None
    return int(words[0]), int(words[1])
