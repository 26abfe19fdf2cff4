"""Imported by the fork server before it forks workers: makes it ignore SIGTERM until the trainer ends.

The kernel kills workers together with their parent, the fork server.
"""

from __future__ import annotations

from coterie.envs.external.workers.worker_loop import ignore_sigterm

ignore_sigterm()
