"""Modules that a run does not import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tinyruns import tiny

PROGRAM = """
import sys
from coterie.__main__ import main
for line in sys.stdin:
    words = line.split()
    assert main(words) == 0, words
    sys.modules["coterie.commands.train"].draw_curves = lambda folder: None  # only the first run draws them
    print('torch._dynamo' in sys.modules, 'torch._inductor' in sys.modules)
"""
OFF_POLICY = ("algo.learning_starts=20", "algo.batch_size=4", "steps=160", "eval.every=0")
SMALL = [setting for setting in tiny("eval.every=0", "out=runs/first") if not setting.startswith("algo.")]


@pytest.mark.slow
def test_no_optimizer_imports_the_compiler_of_pytorch(tmp_path: Path):
    """It takes about as long as the rest of PyTorch. `torch.optim` imports it in its first step."""
    lines = ["train algo=mappo " + " ".join(SMALL)]
    lines += ["train algo=mappo/original eval.every=0 " + " ".join(SMALL[:-1])]
    lines += ["train algo=masac " + " ".join([*SMALL[:-1], *OFF_POLICY])]
    lines += ["resume runs/first steps=160", "evaluate runs/first --episodes 4"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input="".join(f"{line}\n" for line in lines),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith(("True", "False"))] == ["False False"] * len(
        lines
    )
