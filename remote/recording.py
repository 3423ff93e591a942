"""What one task adds to the ledger: scrubbed, and never in the way of what the task is for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote.clock import Clock
from remote.core.host_facts import RunState
from remote.core.phases import Phase
from remote.core.run_record import STARTED, Ending, RunRow, learnt_from, settled
from remote.core.scrubbing import Scrubber
from remote.core.start_identity import unseen
from remote.display import Display, moment
from remote.errors import SSHError, ToolError
from remote.host_lock import whoami
from remote.ledger import EventRow, Ledger, PointLike
from remote.planning import Plan
from remote.server import Outcome, Verdict

if TYPE_CHECKING:
    from remote.core.verdict import Diagnosis

#: A start that the host doesn't know may still be on its way there for so long.
_ON_ITS_WAY_S = 3600.0
#: An id begins with so much of its time.
_TIME_CHARS = len("20261129-201530")
#: What an event of an ending is called.
_WORDS = {"crashed": "crash", "died_after_ready": "crash", "hung": "hang", "stopped": "stop"}
#: A verdict reached faster than this, on a start taken up again, says nothing of when it came.
_CAUGHT_UP_S = 5.0


class Recorder:
    """Writes to the ledger for one host; one that can't be used costs a warning, nothing else."""

    def __init__(
        self, runs: Path, host: str, display: Display, scrubber: Scrubber, clock: Clock
    ) -> None:
        self._runs = runs
        self._ledger = Ledger(runs)
        self._host = host
        self._display = display
        self._scrubber = scrubber
        self._clock = clock
        self._warned = False

    @contextmanager
    def _no_obstacle(self) -> Iterator[None]:
        try:
            yield
        except ToolError as error:
            if not self._warned:
                self._warned = True
                self._display.warn(f"not everything is recorded: {error.message}")

    def event(self, what: str, run: str | None = None, **details: Any) -> None:
        """Something happened on the host."""
        who = whoami()
        row = EventRow(
            at=self._clock.wall_s(),
            user=who["user"],
            client=who["client"],
            host=self._host,
            run=run,
            what=what,
            details=self._scrubbed(details),
        )
        with self._no_obstacle():
            self._ledger.note_event(row)

    @contextmanager
    def doing(self, what: str, **details: Any) -> Iterator[dict[str, Any]]:
        """An event for the block, however it ends.

        Yields details to be added to; ``run`` among them is the run that it is about.
        """
        told = dict(details)
        try:
            yield told
        except ToolError as error:
            told["error"] = {"type": type(error).__name__, "message": error.message}
            raise
        except KeyboardInterrupt:
            told["error"] = {"type": "KeyboardInterrupt", "message": "interrupted"}
            raise
        finally:
            run = told.pop("run", None)
            self.event(what, run, **told)

    @contextmanager
    def start(self, made: Plan, folder: Path) -> Iterator[None]:
        """A row for the start that the block makes, whichever way that ends.

        Where the connection is lost or somebody interrupts, it stays ``started``: a later look
        tells what became of it.
        """
        row = RunRow.from_record(
            made.run, self._host, self._clock.wall_s(), made.record(), str(folder)
        )
        with self._no_obstacle():
            self._ledger.note_start(RunRow(**self._scrubbed(asdict(row))))
        try:
            yield
        except SSHError:
            raise
        except Exception as error:
            self._ended(made.run, Ending("refused", cause=str(error)))
            raise
        with self._no_obstacle():
            self._ledger.note_launched(made.run, self._clock.wall_s())
        for previous in made.stops:
            self.seen(previous)
            self.stopped(previous.run, f"made way for {made.run}")

    def verdict(self, run: str, verdict: Verdict, *, whole: bool = True) -> None:
        """How a start ended that needs no diagnosis.

        Args:
            whole: it was followed from its beginning.
        """
        seconds = self._seconds(run)
        if not whole and verdict.elapsed_s < _CAUGHT_UP_S:
            seconds = None
        reason = "" if verdict.outcome is Outcome.READY else verdict.reason
        phase = "" if verdict.outcome is Outcome.READY else verdict.state.phase.value
        self._ended(run, Ending(verdict.outcome.value, "", reason, "", phase, seconds))

    def failed(self, run: str, verdict: Verdict, diagnosis: Diagnosis) -> None:
        """A crash or a hang, diagnosed."""
        self.diagnosed(run, verdict.outcome.value, diagnosis, verdict.state.phase, verdict.reason)

    def diagnosed(
        self,
        run: str,
        outcome: str,
        diagnosis: Diagnosis,
        phase: Phase | None = None,
        reason: str = "",
    ) -> None:
        """A failure and its cause, as far as that is known."""
        where = diagnosis.phase or phase
        ending = Ending(
            outcome,
            diagnosis.kind or "",
            diagnosis.cause or reason,
            diagnosis.first_rank,
            where.value if where else "",
            self._seconds(run),
        )
        self._ended(run, ending)

    def stopped(self, run: str, why: str, **details: Any) -> None:
        """A run was ended on request."""
        ending = Ending("stopped", cause=why, seconds=self._seconds(run))
        with self._no_obstacle():
            self._ledger.note_ending(run, Ending(**self._scrubbed(asdict(ending))))
        self.event("stop", run, why=why, **details)

    def seen(self, *found: RunState, all_of_them: bool = False) -> None:
        """What the host knows of its runs, where that is more than the ledger does.

        Args:
            all_of_them: the host has no others that are as new as the oldest of these.
        """
        with self._no_obstacle():
            known = {row.id: row for row in self._ledger.runs(host=self._host)}
            for run in found:
                row = known.get(run.run) or self._adopt(run)
                for learnt in learnt_from(run):
                    before, row = row, settled(row, learnt)
                    if row != before:
                        self._ended(run.run, learnt)
            if all_of_them:
                self._missing(known, [run.run for run in found])

    def _adopt(self, run: RunState) -> RunRow:
        """A start that another client made, or that the ledger has lost."""
        began = float(run.record.get("started_at", run.now))
        at = self._clock.wall_s() - (run.now - began)
        folder = self._runs / run.run
        kept = str(folder) if folder.is_dir() else ""
        row = RunRow.from_record(run.run, self._host, at, run.record, kept)
        row = RunRow(**self._scrubbed(asdict(row)))
        self._ledger.note_start(row)
        return row

    def _missing(self, known: Mapping[str, RunRow], listed: Sequence[str]) -> None:
        oldest = min(listed, default="")[:_TIME_CHARS]
        for run, row in known.items():
            late = self._clock.wall_s() - row.at > _ON_ITS_WAY_S
            if row.outcome == STARTED and late and run >= oldest and run not in listed:
                self._ended(run, Ending("not_started", cause="the host does not know it"))

    def _ended(self, run: str, ending: Ending) -> None:
        with self._no_obstacle():
            changed = self._ledger.note_ending(run, Ending(**self._scrubbed(asdict(ending))))
            if changed is None:
                return
            before, row = changed
            told = {"outcome": row.outcome, "kind": row.kind, "cause": row.cause}
            if row.outcome == before.outcome:
                self.event("diagnosis", run, **told)
            elif row.outcome in _WORDS:
                self.event(_WORDS[row.outcome], run, **told)

    def tell_earlier(self, made: Plan) -> None:
        """Warn where exactly this has been tried before and failed."""
        found: list[RunRow] = []
        with self._no_obstacle():
            found = self._ledger.same_starts(str(made.record()["start_identity"]))
        found = [row for row in found if row.outcome not in ("refused", "not_started", STARTED)]
        failures = [row for row in found if row.failed]
        if not failures:
            return
        last = failures[0]
        what = f"exactly this{unseen(made.facts)}"
        text = f"already tried {what} on {moment(last.at)}: run {last.id} {last.ending}"
        if last.note:
            text += f"; its note: {last.note}"
        if len(found) > 1:
            text += f"; of {len(found)} such starts {len(failures)} failed"
        self._display.warn(text)

    def point(self, point: PointLike | Mapping[str, Any]) -> None:
        """A bench point, as soon as it is there."""
        row = point if isinstance(point, Mapping) else point.as_dict()
        with self._no_obstacle():
            self._ledger.note_point(self._scrubbed(row))

    def phases(self, profile: str) -> dict[Phase, list[float]]:
        """What the phases of earlier starts took."""
        found: dict[Phase, list[float]] = {}
        with self._no_obstacle():
            found |= self._ledger.phases(self._host, profile)
        return found

    def note_phases(self, profile: str, run: str, seconds: Mapping[Phase, float]) -> None:
        """What the phases of a start took."""
        with self._no_obstacle():
            self._ledger.note_phases(self._host, profile, run, seconds, self._clock.wall_s())

    def _seconds(self, run: str) -> float | None:
        """From the run's start until now."""
        with self._no_obstacle():
            row = self._ledger.run(run)
            if row is not None:
                return round(max(self._clock.wall_s() - row.at, 0.0), 1)
        return None

    def _scrubbed(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._scrubber.text(value)
        if isinstance(value, Mapping):
            return {self._scrubbed(key): self._scrubbed(each) for key, each in value.items()}
        if isinstance(value, tuple):
            return tuple(map(self._scrubbed, value))
        return [self._scrubbed(each) for each in value] if isinstance(value, list) else value
