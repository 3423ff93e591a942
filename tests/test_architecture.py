"""Imports go down only: the layers of the design, and what each may reach for."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
MODULES = {
    ".".join(path.relative_to(PROJECT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in [PROJECT / "tasks.py", *(PROJECT / "remote").rglob("*.py")]
    if "shims" not in path.parts
}

#: From the bottom up: a module imports from layers below its own. The packages `core`, `ledger`,
#: `payload` and `sandbox` stand for all that is in them, and are free within themselves.
LAYERS: tuple[frozenset[str], ...] = tuple(
    map(
        frozenset,
        (
            ("remote.errors",),
            ("remote.core",),
            ("remote.payload", "remote.private_file", "remote.sandbox"),
            # What everything else is told by and works on.
            (
                "remote.bench_store",
                "remote.clock",
                "remote.config",
                "remote.fast_dial",
                "remote.host",
                "remote.ledger",
                "remote.patch_sets",
                "remote.proxy_command",
                "remote.secret_sources",
                "remote.ssh_config",
                "remote.starter",
                "remote.store",
            ),
            ("remote.remembered",),
            (
                "remote.agent",
                "remote.charts",
                "remote.decoding",
                "remote.dialing",
                "remote.host_keys",
                "remote.host_lock",
                "remote.logins",
                "remote.redial",
                "remote.rendering",
            ),
            ("remote.connecting",),
            # The capabilities, and the host that they are given.
            (
                "remote.ssh",
                "remote.answers",
                "remote.bench",
                "remote.crash",
                "remote.patching",
                "remote.probe",
                "remote.profile",
                "remote.pulling",
                "remote.report",
                "remote.server",
                "remote.venv",
            ),
            # Put together from capabilities: a log is followed, a deploy planned and carried out.
            ("remote.display", "remote.logs", "remote.proving"),
            ("remote.planning",),
            ("remote.deploy",),
            ("remote.plan_view", "remote.recording"),
            ("remote.session",),
            ("remote.diagnosing", "remote.locking"),
            # What a task does.
            ("remote.experiment", "remote.patch_work", "remote.stopping"),
            (
                "remote.authoring",
                "remote.benching",
                "remote.doctor",
                "remote.history",
                "remote.inspecting",
                "remote.overview",
                "remote.restoring",
                "remote.sandbox.tasks",
                "remote.watching",
            ),
            ("remote.comparing", "remote.rerunning"),
            ("remote.experimenting",),
            ("remote.reporting",),
            ("tasks",),
        ),
    )
)

#: Packages beyond the standard library, and the modules that may import them.
ALLOWED = {
    "asyncssh": ("remote.sandbox",),
    "fabric": ("remote.connecting", "remote.ssh"),
    "invoke": ("tasks",),
    "jinja2": ("remote.rendering",),
    "matplotlib": ("remote.charts",),
    "packaging": ("remote.doctor", "remote.patch_sets"),
    "paramiko": (
        "remote.connecting",
        "remote.fast_dial",
        "remote.host_keys",
        "remote.logins",
        "remote.ssh",
        "remote.ssh_config",
    ),
    "rich": ("remote.display",),
    "scipy": ("remote.core.statistics",),
    "yaml": ("remote.patch_sets", "remote.profile"),
    # In interpreters of their own, where these are installed.
    "flashinfer": ("remote.payload.probe",),
    "safetensors": ("remote.sandbox.tiny_model",),
    "sglang": ("remote.payload.parser_flags",),
    "tokenizers": ("remote.sandbox.tiny_model",),
    "torch": ("remote.payload.probe", "remote.sandbox.tiny_model"),
    "tvm_ffi": ("remote.payload.probe",),
}


def imports(name: str) -> Iterator[str]:
    """The modules that a module imports, wherever in it, but for its annotations."""
    tree = ast.parse(MODULES[name].read_text("utf-8"))
    package = name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]

    def visit(node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                yield from (alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    above = package.rsplit(".", child.level - 1)[0] if child.level > 1 else package
                    base = f"{above}.{base}".rstrip(".")
                for alias in child.names:
                    full = f"{base}.{alias.name}"
                    yield full if full in MODULES else base
            yield from visit(child)

    yield from visit(tree)


def outside(name: str) -> set[str]:
    """The third-party packages that a module imports, wherever in it."""
    tops = {found.partition(".")[0] for found in imports(name)}
    return tops - set(sys.stdlib_module_names) - {"remote", "tasks", "__future__"}


def of(*prefixes: str) -> list[str]:
    return sorted(
        name for name in MODULES if any(name == p or name.startswith(f"{p}.") for p in prefixes)
    )


def layer(name: str) -> int:
    """Where a module stands; the most particular entry counts."""
    if name == "remote":
        return 0
    fitting = [
        (len(entry), number)
        for number, entries in enumerate(LAYERS)
        for entry in entries
        if name == entry or name.startswith(f"{entry}.")
    ]
    assert fitting, f"{name} stands in no layer: give it one in {Path(__file__).name}"
    return max(fitting)[1]


def within_one_package(name: str, found: str) -> bool:
    return any(
        f"{name}.".startswith(f"{package}.")
        and (found == package or found.startswith(f"{package}."))
        for package in ("remote.core", "remote.ledger", "remote.payload", "remote.sandbox")
    )


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_go_down_only(name: str) -> None:
    ours = {found for found in imports(name) if found.partition(".")[0] in ("remote", "tasks")}
    up = {
        found
        for found in ours
        if layer(found) > layer(name)
        or (layer(found) == layer(name) and not within_one_package(name, found))
    }
    assert not up, f"{name} imports from its own layer or above"


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_library_is_imported_where_it_is_wrapped_and_nowhere_else(name: str) -> None:
    for package in outside(name):
        assert package in ALLOWED, f"{name} imports {package}"
        assert name in of(*ALLOWED[package]), f"{name} imports {package}"


@pytest.mark.parametrize("name", of("remote.core"))
def test_the_core_is_pure(name: str) -> None:
    # Of scipy's distributions nothing but numbers comes back.
    assert outside(name) <= {"scipy"}
    reached = {found.partition(".")[0] for found in imports(name)}
    assert not reached & {"os", "subprocess", "socket", "threading", "asyncio", "shutil", "time"}
    ours = {found for found in imports(name) if found.startswith("remote")}
    assert ours <= {*of("remote.core"), "remote.errors"}


@pytest.mark.parametrize("name", of("remote.payload"))
def test_the_payload_reaches_for_nothing_that_does_not_travel_with_it(name: str) -> None:
    ours = {found for found in imports(name) if found.startswith("remote")}
    assert ours <= {*of("remote.payload")}


@pytest.mark.parametrize("name", of("remote.payload"))
def test_the_payload_imports_itself_relatively(name: str) -> None:
    """On the host it is a package of another name."""
    for node in ast.walk(ast.parse(MODULES[name].read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and not node.level:
            assert node.module is not None and not node.module.startswith("remote")
