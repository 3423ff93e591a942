"""Where the installed SGLang calls FlashInfer, read from its source, and what stands around it.

Piecewise CUDA graphs trace a model's forward pass with ``fullgraph=True``. A call is bare there
unless something keeps Dynamo out of it: an operator that SGLang registers around it, the operator
around all of the attention or of the experts, or that it runs at another time.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BARE = "bare"
OPERATOR = "in an operator of SGLang's"
ATTENTION = "in the attention operator"
EXPERTS = "in the experts' operator"
SET_UP = "while weights are set up"
OUTSIDE = "outside the forward pass"

#: What makes an operator of a function, as a decorator or called with it.
_REGISTRARS = frozenset(
    {
        "custom_op",
        "direct_register_custom_op",
        "register_custom_op",
        "register_custom_op_from_extern",
        "register_split_op",
    }
)
#: Operators around whole parts of a model: the registered function's file, and what is in it.
_ATTENTION_OPERATOR = "layers/radix_attention.py"
_EXPERTS_OPERATOR = "layers/moe/fused_moe_triton/layer.py"
#: Routing runs before the experts' operator.
_BEFORE_EXPERTS = "layers/moe/topk.py"
_EXPERTS = re.compile(r"MoE|Moe|moe_|Experts")
_KV_CACHE = re.compile(r"(^|[/_])kv[a-z0-9]*_")
_SET_UP = re.compile(
    r"__init__|weight|workspace|shuffle|permute|(^|_)(align|prepare|init|initialize|cleanup)(_|$)"
)
_OUTSIDE = ("layers/sampler.py", "layers/logits_processor.py", "layers/flashinfer_comm_fusion.py")
#: Not FlashInfer's entry points: objects, whose methods no source tells from another's, and what
#: its own modules and kernels are helped by.
_NO_ENTRY_POINT = re.compile(r"\.utils\.|\.[A-Z][A-Za-z0-9_]*$")


@dataclass(frozen=True)
class CallSite:
    """One call: ``op`` is the function's full name, ``place`` what stands around it."""

    op: str
    file: str
    line: int
    function: str
    place: str


@dataclass(frozen=True)
class _Call:
    """A call as found: the functions and classes around it, outermost first."""

    op: str
    line: int
    around: tuple[ast.AST, ...]


def find(package: Path) -> list[CallSite]:
    """All calls of FlashInfer functions under ``srt/layers`` and ``srt/models`` of SGLang."""
    root = package / "srt"
    sources = {}
    for path in sorted([*root.glob("layers/**/*.py"), *root.glob("models/**/*.py")]):
        text = path.read_text("utf-8", "replace")
        if "flashinfer" in text or path == root / _ATTENTION_OPERATOR:
            sources[path.relative_to(root).as_posix()] = ast.parse(text)
    attention = _registers(sources.get(_ATTENTION_OPERATOR))
    experts = _registers(sources.get(_EXPERTS_OPERATOR))
    found = []
    for file, tree in sources.items():
        operators = _operators(tree)
        for call in _calls(tree, _names(tree, operators)):
            names = [node.name for node in call.around if isinstance(node, _SCOPES)]
            place = _place(file, names, call.around, operators, attention, experts)
            found.append(CallSite(call.op, file, call.line, ".".join(names), place))
    return found


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _place(
    file: str,
    names: list[str],
    around: tuple[ast.AST, ...],
    operators: frozenset[str],
    attention: bool,
    experts: bool,
) -> str:
    if any(name in operators for name in names) or any(map(_decorated, around)):
        return OPERATOR
    if not names or any(_SET_UP.search(name) for name in names):
        return SET_UP
    if file in _OUTSIDE:
        return OUTSIDE
    if attention and (file.startswith("layers/attention/") or _KV_CACHE.search(file)):
        return ATTENTION
    in_experts = file.startswith("layers/moe/") and file != _BEFORE_EXPERTS
    if experts and (in_experts or any(_EXPERTS.search(name) for name in names)):
        return EXPERTS
    return BARE


def _names(tree: ast.AST, operators: frozenset[str]) -> dict[str, str]:
    """What the file calls FlashInfer's modules and functions, by local name."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and _is_flashinfer(node.module):
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if _is_flashinfer(alias.name):
                    name = alias.asname or "flashinfer"
                    names[name] = alias.name if alias.asname else "flashinfer"
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            for target in node.targets:
                if isinstance(target, ast.Name) and node.value.id in names:
                    names[target.id] = names[node.value.id]
    # `f = register(f)`: what is called by that name from then on is the operator.
    return {name: full for name, full in names.items() if name not in operators}


def _is_flashinfer(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] == "flashinfer"


def _operators(tree: ast.AST) -> frozenset[str]:
    """Names that are operators: what a registrar is called with, and what it gives."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node.func) in _REGISTRARS:
            values = [*node.args, *(word.value for word in node.keywords if word.arg == "op_func")]
            names |= {value.id for value in values if isinstance(value, ast.Name)}
        if isinstance(node, ast.Assign) and _called(_function(node.value)) in _REGISTRARS:
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(names)


def _decorated(node: ast.AST) -> bool:
    decorators = node.decorator_list if isinstance(node, _SCOPES) else []
    return any(_called(_function(word)) in _REGISTRARS for word in decorators)


def _registers(tree: ast.AST | None) -> bool:
    """Whether the file makes an operator of one of its functions."""
    return tree is not None and any(_decorated(node) for node in ast.walk(tree))


def _function(expression: ast.AST) -> ast.AST:
    """What a call calls; anything else as it is."""
    return expression.func if isinstance(expression, ast.Call) else expression


def _called(function: ast.AST) -> str:
    """The last word of a dotted name."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _calls(
    node: ast.AST, names: dict[str, str], around: tuple[ast.AST, ...] = ()
) -> Iterator[_Call]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            first, dot, rest = ast.unparse(child.func).partition(".")
            op = names.get(first, "") + dot + rest
            if first in names and not _NO_ENTRY_POINT.search(op):
                yield _Call(op, child.lineno, around)
        inside = (*around, child) if isinstance(child, _SCOPES) else around
        yield from _calls(child, names, inside)
