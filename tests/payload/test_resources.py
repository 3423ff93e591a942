"""Room and leave on the host: kernel caches, limits, the tool's folder."""

from __future__ import annotations

from pathlib import Path

from remote.payload import resources


def test_a_cache_is_where_the_servers_variables_put_it(home: Path, tmp_path: Path) -> None:
    by_name = {row["name"]: row for row in resources.caches({})}
    assert by_name["FlashInfer"]["path"] == f"{home}/.cache/flashinfer"
    assert by_name["Triton"]["path"] == f"{home}/.triton/cache"
    moved = {"FLASHINFER_WORKSPACE_BASE": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "t")}
    by_name = {row["name"]: row for row in resources.caches(moved)}
    assert by_name["FlashInfer"]["path"] == f"{tmp_path}/.cache/flashinfer"
    assert by_name["Triton"]["path"] == str(tmp_path / "t")
    assert by_name["Triton"]["writable"] and by_name["Triton"]["free_bytes"] > 0


def test_the_tools_folder_is_told_as_it_is(tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert resources.state_folder(str(state))["kind"] == "missing"
    state.mkdir(mode=0o700)
    found = resources.state_folder(str(state))
    assert (found["kind"], found["ours"], found["mode"]) == ("folder", True, 0o700)
    state.chmod(0o777)
    assert resources.state_folder(str(state))["mode"] == 0o777
    link = tmp_path / "link"
    link.symlink_to(state)
    assert resources.state_folder(str(link))["kind"] == "link"
