"""Lets a patch act on a module in the moment in which it is imported.

A patch's `.pth` imports it at every start of the interpreter, so nothing here is imported and next
to nothing is done until a watched module is. What goes wrong in a patch is one line on standard
error, and the module stays as its author wrote it.
"""

import os
import sys

#: Patches named in this variable (comma list, or `all`) do nothing.
SWITCH = "SGLANG_REMOTE_PATCHES_OFF"
#: What marks a function as a patch's own: the patch's name.
MARK = "__sglang_remote_patch__"


class _BeforeImport:
    """A finder that leaves the finding to the others and adds to what the loader does."""

    def __init__(self):
        self.watched = {}
        self._finding = set()

    def find_spec(self, name, path=None, target=None):
        if name not in self.watched or name in self._finding:
            return None
        self._finding.add(name)
        try:
            for finder in sys.meta_path:
                find = getattr(finder, "find_spec", None)
                if finder is self or find is None:
                    continue
                spec = find(name, path, target)
                if spec is not None:
                    self._act_after_loading(spec)
                    return spec
        finally:
            self._finding.discard(name)
        return None

    def _act_after_loading(self, spec):
        # On the loader that was found, not around it: what asks it for source or data still can.
        loader = spec.loader

        def exec_module(module):
            try:
                execute(module)
            finally:
                loader.__dict__.pop("exec_module", None)
            self.act(module)

        try:
            execute = loader.exec_module
            loader.exec_module = exec_module
        except AttributeError as error:
            say(f"cannot act on {spec.name}: {error}")

    def act(self, module):
        for patch, action in self.watched.get(module.__name__, ()):
            try:
                action(module)
            except Exception as error:
                say(f"patch {patch} failed, {module.__name__} is as it was: {error!r}")


_finder = _BeforeImport()


def on_import(patch, modules, action):
    """Call ``action(module)`` after each of the modules was executed, unless switched off."""
    off = {name.strip() for name in os.environ.get(SWITCH, "").split(",")}
    if "all" in off or patch in off:
        return
    for name in modules:
        _finder.watched.setdefault(name, []).append((patch, action))
        if name in sys.modules:
            _finder.act(sys.modules[name])
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def flashinfer_version():
    """The version being imported, as text; its top module begins with it."""
    return str(sys.modules["flashinfer.version"].__version__)


def release(version):
    """The numbers that a version begins with: 0.6.8.post1 gives (0, 6, 8)."""
    numbers = []
    for part in version.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


_told = set()


def tell(patch):
    """Say once in every process that the patch acts, for the server's log."""
    if patch not in _told:
        _told.add(patch)
        say(f"patch {patch} acts on flashinfer {flashinfer_version()}")


def carry_over(original, ours, patch):
    """Give ``ours`` the name and signature of ``original``, and the patch's mark.

    Not what Dynamo notes on a function, as `torch.compiler.disable` makes it do: that is about the
    original alone.
    """
    import functools

    functools.update_wrapper(ours, original)
    for name in [name for name in vars(ours) if name.startswith("_torchdynamo")]:
        delattr(ours, name)
    setattr(ours, MARK, patch)


def rebind(original, ours):
    """Put ``ours`` wherever a loaded flashinfer module holds ``original``."""
    for name, module in list(sys.modules.items()):
        if name == "flashinfer" or name.startswith("flashinfer."):
            for attribute, value in list(vars(module).items()):
                if value is original:
                    setattr(module, attribute, ours)


def say(what):
    """One line on standard error, where there is one."""
    try:
        sys.stderr.write(f"sglang-remote: {what} (pid {os.getpid()})\n")
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        pass  # none, closed, or nobody reads it
