"""Is imported by the server that workers are forked from, before it forks any: it lives as long as the trainer does.

Its end is that of its workers, since the kernel kills them with their parent.
"""

from __future__ import annotations

from coterie.envs.workers.serve import outlast

outlast()
