"""A Ray cluster on this machine, in a process of its own, for the tests of Ray workers.

    python raycluster.py

Starts a head and another node with one core each, and prints the head's address. `kill` on stdin kills the other node
at once, as a power failure would. The end of stdin ends the cluster.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from ray.cluster_utils import Cluster

STORE = 80 * 2**20
QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
"""How soon a node that is killed is known to be dead."""


def main() -> None:
    here: dict[str, Any] = {"node_ip_address": "127.0.0.1", "object_store_memory": STORE, "include_log_monitor": False}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "include_dashboard": False, "_system_config": QUICK, **here},
    )
    node = cluster.add_node(num_cpus=1, **here)
    print(cluster.address, flush=True)
    for _ in sys.stdin:
        for process in node.all_processes.values():
            for started in process:
                os.kill(started.process.pid, signal.SIGKILL)
        print("killed", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
