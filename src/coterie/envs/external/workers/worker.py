"""A worker that steps some of the environments, as its backend sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod

from coterie.envs.external.workers.worker_loop import WorkerSpec


class WorkerFailure(Exception):
    """A worker failed. The message gives the reason.

    Attributes:
        replied: The worker reported an error of its environment; otherwise it ended or did not reply in time.
        timed_out: It did not reply in time.
    """

    def __init__(self, reason: str, *, replied: bool = False, timed_out: bool = False):
        super().__init__(reason)
        self.replied, self.timed_out = replied, timed_out


class Worker(ABC):
    """Receives commands and replies to each. Results are in the backend's shared arrays when it has replied."""

    spec: WorkerSpec

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """Process ID on the machine where the worker runs."""

    @abstractmethod
    def send(self, command: bytes) -> None:
        """Sends a command.

        Raises:
            WorkerFailure: If the connection is closed.
        """

    @abstractmethod
    def receive(self, deadline: float, timeout: float) -> bytes:
        """Waits for the reply to the last command.

        Args:
            deadline: Monotonic time until which to wait.
            timeout: Seconds that the worker had, for the error message.

        Raises:
            WorkerFailure: If there is no reply in time, or it reports an error.
        """

    @abstractmethod
    def close(self, grace: float = 0.0) -> None:
        """Ends the worker.

        Args:
            grace: Seconds for a process to end on its own before it is killed, once its environments are closed.
        """
