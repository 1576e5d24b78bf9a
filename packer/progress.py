"""What a person sees of the work: objects, bytes, rate, time left; or nothing."""

import time
from threading import Lock
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

_TELL_SECONDS = 0.05


class Watcher(Protocol):
    """Hears how far the work has come. Called from many threads."""

    def stage(self, name: str, objects: int | None, size_bytes: int | None) -> None:
        """A new stage begins, of so many objects and bytes where that is known."""

    def advance(self, objects: int, size_bytes: int) -> None:
        """So much more of the stage is done."""

    def say(self, text: str) -> None:
        """Something a person should know."""


class Silent:
    """Tells nobody, but keeps what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def stage(self, name: str, objects: int | None, size_bytes: int | None) -> None:
        """Nothing to show."""

    def advance(self, objects: int, size_bytes: int) -> None:
        """Nothing to show."""

    def say(self, text: str) -> None:
        self.said.append(text)


class Shown:
    """A bar a stage on the terminal, as a context. Where it is none, a line a stage."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[objects]:,} objects"),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task: TaskID | None = None
        self._guard = Lock()
        self._objects = 0
        self._bytes = 0
        self._told_seconds = 0.0

    def stage(self, name: str, objects: int | None, size_bytes: int | None) -> None:
        if self._task is not None:
            self._tell(self._task)
            self._progress.update(self._task, total=self._progress.tasks[-1].completed)
        if not self._console.is_terminal:
            known = f" {objects:,} objects" if objects is not None else ""
            self._console.print(f"{name}{known}", highlight=False)
        self._objects = self._bytes = 0
        self._task = self._progress.add_task(name, total=size_bytes, objects=0)

    def advance(self, objects: int, size_bytes: int) -> None:
        with self._guard:
            self._objects += objects
            self._bytes += size_bytes
        now = time.monotonic()
        # Nobody sees more, and to tell costs as much as to read a small object's head.
        if self._task is not None and now - self._told_seconds >= _TELL_SECONDS:
            self._told_seconds = now
            self._tell(self._task)

    def _tell(self, task: TaskID) -> None:
        self._progress.update(task, completed=self._bytes, objects=self._objects)

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)

    def __enter__(self) -> "Shown":
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._tell(self._task)
        self._progress.stop()
