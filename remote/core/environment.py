"""The one PATH and CUDA part that every remote command gets."""

from __future__ import annotations

from collections.abc import Mapping

#: What stands behind the venv and CUDA. Fixed rather than taken from the login shell: a PATH that
#: differs between two ways of logging in makes FlashInfer rebuild its kernels for half an hour.
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

#: Variables that would make the venv's interpreter load something that isn't in the venv.
UNSET = ("PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "CONDA_PREFIX", "CONDA_DEFAULT_ENV")


def fixed(venv: str, cuda_home: str) -> dict[str, str]:
    """PATH, VIRTUAL_ENV and CUDA_HOME; FlashInfer's JIT finds `ninja` and `nvcc` on this PATH."""
    return {
        "PATH": f"{venv}/bin:{cuda_home}/bin:{SYSTEM_PATH}",
        "VIRTUAL_ENV": venv,
        "CUDA_HOME": cuda_home,
    }


def recorded(fixed_part: Mapping[str, str], server: Mapping[str, str]) -> dict[str, str]:
    """The server's whole environment: its own variables stand over the fixed part."""
    return {**fixed_part, **server}
