"""How many logs of the case collection are diagnosed as they are labelled, per kind.

    python -m benchmarks.diagnosis_accuracy [--failures]

A change to a rule shows here what it gained and what it lost.
"""

from __future__ import annotations

import csv
import sys
import time
from collections import Counter
from pathlib import Path

from remote.core.diagnosis import diagnose
from remote.core.reading import read_log

CASES = Path(__file__).parents[1] / "tests" / "cases"


def labelled() -> list[tuple[Path, str | None]]:
    """Every log with the kind that it shows; None for a healthy one."""
    with (CASES / "diagnosis" / "labels.tsv").open(encoding="utf-8") as table:
        crashes = list(csv.DictReader(table, delimiter="\t"))
    with (CASES / "server_log" / "labels.tsv").open(encoding="utf-8") as table:
        real = list(csv.DictReader(table, delimiter="\t"))
    return [
        # ``secondary_only`` is how the collection calls what has no cause in the log.
        (
            CASES / "diagnosis" / "recon" / row["file"],
            "insufficient_evidence" if row["kind"] == "secondary_only" else row["kind"],
        )
        for row in crashes
    ] + [(CASES / "server_log" / f"{row['log']}.log", row["kind"] or None) for row in real]


def main() -> int:
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    taken: dict[str, Counter[str]] = {}
    failures = []
    started = time.perf_counter()
    cases = labelled()
    for path, kind in cases:
        found = diagnose(read_log([path.read_bytes()])).kind
        name = kind or "(healthy)"
        total[name] += 1
        if found == kind:
            right[name] += 1
        else:
            taken.setdefault(name, Counter())[found or "(healthy)"] += 1
            failures.append(f"{path.name}: {name}, read as {found}")
    elapsed = time.perf_counter() - started
    for name in sorted(total):
        mistakes = ", ".join(f"{kind} {n}" for kind, n in taken.get(name, Counter()).items())
        print(f"{name:26}{right[name]:4} of {total[name]:<4}{mistakes}")
    print(f"{'all':26}{right.total():4} of {total.total():<4}in {elapsed:.1f} s")
    if "--failures" in sys.argv:
        print(*failures, sep="\n")
    return 0 if right == total else 1


if __name__ == "__main__":
    sys.exit(main())
