"""nvidia-smi's samples of a point: figures, throttling, strangers."""

from __future__ import annotations

from remote.core import gpu_samples

HEADER = (
    "timestamp, index, uuid, power.draw [W], clocks.current.sm [MHz], memory.used [MiB],"
    " utilization.gpu [%], temperature.gpu, clocks_event_reasons.active\n"
)
A, B = "GPU-1111e3ea", "GPU-2222e3ea"


def row(second: int, uuid: str = A, power: str = "400.00", mask: int = 0, use: int = 90) -> str:
    return (
        f"2026/11/29 23:40:{second:02}.922, 0, {uuid}, {power}, 1980, 70000, {use}, 60,"
        f" 0x{mask:016x}\n"
    )


def on_gpu(pid: int, run: str, uuid: str = A, command: str = "sglang::scheduler") -> str:
    return f"1796000000,{uuid},{pid},70000,{run},root,{command}\n"


def test_a_host_without_gpus_says_so_and_has_no_zeros() -> None:
    found = gpu_samples.read(None, None, "r1")
    assert found.figures is None
    assert "no nvidia-smi" in found.note
    assert not found.against


def test_samples_that_are_none_are_quoted() -> None:
    found = gpu_samples.read("Failed to initialize NVML: Unknown Error\n", "", "r1")
    assert found.figures is None
    assert "Failed to initialize NVML" in found.note


def test_figures_are_of_the_servers_gpus_while_it_worked() -> None:
    samples = HEADER + "".join(
        [row(1, power="80.00", use=0), row(5), row(6, power="600.00"), row(6, B, power="75.00")]
    )
    processes = on_gpu(7, "r1") + on_gpu(8, "r2", B)
    window = ("2026-11-29 23:40:05", "2026-11-29 23:40:09")
    found = gpu_samples.read(samples, processes, "r1", window)
    assert found.figures is not None
    assert found.figures["gpus"] == 1
    assert found.figures["power_w_mean"] == 500.0
    assert found.figures["power_w_max"] == 600.0
    assert found.figures["utilisation_percent_mean"] == 90.0
    assert not found.against


def test_a_window_of_another_clock_is_no_obstacle() -> None:
    found = gpu_samples.read(HEADER + row(5), "", "r1", ("1999-01-01 00:00:00",) * 2)
    assert found.figures is not None and found.figures["samples"] == 1


def test_a_row_that_was_cut_off_and_a_figure_that_is_not_known_are_left_out() -> None:
    samples = HEADER + row(1, power="[N/A]") + row(2)[:40]
    found = gpu_samples.read(samples, "", "r1")
    assert found.figures is not None
    assert found.figures["samples"] == 1
    assert "power_w_mean" not in found.figures
    assert found.figures["clock_mhz_mean"] == 1980


def test_thermal_throttling_counts_against_a_point_and_a_power_cap_does_not() -> None:
    hot = gpu_samples.read(HEADER + row(1, mask=0x40) + row(2), "", "r1")
    assert any("hardware thermal slowdown in 50%" in reason for reason in hot.against)
    capped = gpu_samples.read(HEADER + row(1, mask=0x4) + row(2, mask=0x4), "", "r1")
    assert not capped.against
    assert capped.figures is not None and capped.figures["power_capped_share"] == 1.0


def test_one_throttled_sample_of_many_is_no_reason() -> None:
    samples = HEADER + row(0, mask=0x20) + "".join(row(1 + second) for second in range(40))
    found = gpu_samples.read(samples, "", "r1")
    assert not found.against
    assert found.figures is not None and "software thermal slowdown" in str(found.figures)


def test_a_stranger_on_the_servers_gpu_is_named_once() -> None:
    processes = on_gpu(7, "r1") + 2 * on_gpu(99, "-", command="python train.py, --lr 1")
    found = gpu_samples.read(HEADER + row(1), processes, "r1")
    (reason,) = found.against
    assert "pid 99 of root" in reason and "python train.py, --lr 1" in reason


def test_a_stranger_on_another_gpu_is_nobodys_business() -> None:
    processes = on_gpu(7, "r1") + on_gpu(99, "-", B)
    assert not gpu_samples.read(HEADER + row(1), processes, "r1").against


def test_where_the_own_processes_are_not_seen_nobody_is_accused() -> None:
    found = gpu_samples.read(HEADER + row(1), on_gpu(99, "-"), "r1")
    assert not found.against
    assert "none of the processes" in found.note
