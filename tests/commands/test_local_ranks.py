from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from coterie.commands import local_ranks
from coterie.config.resolve import resolve

_INTERRUPTED = """
import os, sys, time
if os.environ["COTERIE_RANK"] == "0":
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    sys.exit(130)
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(os.getpid()))
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(100)
"""


def test_a_rank_0_that_is_interrupted_before_it_trains_interrupts_the_command(tmp_path: Path) -> None:
    config = resolve(["env=particle/simple_spread", "algo=ippo", "num_envs=4", "ranks=2"]).config
    with pytest.raises(KeyboardInterrupt):
        local_ranks._run([sys.executable, "-c", _INTERRUPTED, str(tmp_path / "other")], config, tmp_path)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "other").read_text()), 0)
