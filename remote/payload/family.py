"""A run's processes, looked at again and again at little cost."""

from __future__ import annotations

from . import procs

#: A process in the middle of an exec shows no environment: once is no proof of a stranger.
_LOOKS = 2
#: Where little is asked for, everybody is looked at each so many looks.
_ALL = 3
#: Looks after which everybody is asked once more: a pid may have gone to somebody else unseen.
_RENEWED = 60


class Family:
    """Who belongs to a run; those seen to be strangers are not asked again and again.

    Attributes:
        dead: processes that ended, and whose parent is of the run and has not asked about them.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._members: dict[int, int] = {}  # pid → start
        self._strangers: dict[int, int] = {}  # pid → looks that said so
        self._looks = 0
        self.dead: list[procs.Process] = []

    def look(self, *, everybody: bool = True) -> list[procs.Process]:
        """The living members, oldest first.

        Args:
            everybody: also those that have come since the last look.
        """
        self._looks += 1
        if self._looks % _RENEWED == 0:
            self._strangers.clear()
        if everybody or self._looks % _ALL == 0:
            there = set(procs.pids())
            for known in (self._members, self._strangers):
                for pid in known.keys() - there:
                    del known[pid]
        else:
            there = {*self._members, *(process.pid for process in self.dead)}
        found: dict[int, procs.Process] = {}
        ended = []
        for pid in there:
            if self._strangers.get(pid, 0) >= _LOOKS:
                continue
            process = procs.find(pid)
            if process is None:
                continue
            if not process.alive:
                ended.append(process)
            elif self._members.get(pid) == process.start or procs.run_of(pid) == self._run:
                self._members[pid] = process.start
                self._strangers.pop(pid, None)
                found[pid] = process
            else:
                self._members.pop(pid, None)
                self._strangers[pid] = self._strangers.get(pid, 0) + 1
        self.dead = [process for process in ended if process.parent in found]
        return sorted(found.values(), key=lambda process: (process.start, process.pid))


class Titles:
    """Process titles, read again where the kernel's name changed, and now and then."""

    _AGAIN = 10

    def __init__(self) -> None:
        self._known: dict[int, tuple[str, int, str]] = {}  # pid → name, age in looks, title

    def of(self, process: procs.Process) -> str:
        """The first word of its command line."""
        name, age, title = self._known.get(process.pid, ("", self._AGAIN, ""))
        if name != process.name or age >= self._AGAIN:
            age, title = 0, procs.title(process)
        self._known[process.pid] = (process.name, age + 1, title)
        return title

    def forget(self, but: list[procs.Process]) -> None:
        """Drop those that are gone."""
        alive = {process.pid for process in but}
        for pid in self._known.keys() - alive:
            del self._known[pid]
