"""Training speed of a baseline script of JaxMARL on the CPU, for `jaxmarl_speed.py`.

    PYTHON benchmarks/jaxmarl_baseline.py CHECKOUT SCRIPT CONFIG STEPS [KEY=VALUE...]

trains for about STEPS with the configuration that JaxMARL has for the script, after compiling the whole training as one
program, and prints the speed as JSON. SCRIPT and CONFIG are paths in CHECKOUT/baselines. It imports nothing of Coterie:
PYTHON is an environment with JAX and what the baselines import, except W&B.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

NO_TESTS = {"TEST_DURING_TRAINING": False, "WANDB_MODE": "disabled"}


def measure(checkout: Path, script: Path, config_file: Path, steps: float, settings: list[str]) -> dict[str, Any]:
    """Returns the steps per second of one training, the seconds that it and its compilation took, and versions."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax  # pyright: ignore[reportMissingImports]
    from omegaconf import OmegaConf  # pyright: ignore[reportMissingImports]

    baseline = load(checkout, checkout / "baselines" / script)
    merged = OmegaConf.merge(OmegaConf.load(checkout / "baselines" / config_file), OmegaConf.from_dotlist(settings))
    config = OmegaConf.to_container(merged) | NO_TESTS
    rollout = config["NUM_ENVS"] * config["NUM_STEPS"]
    updates = max(2, round(steps / rollout))
    config["TOTAL_TIMESTEPS"] = updates * rollout
    # The scripts of Q-learning take the environment, the others create it.
    environment = [baseline.env_from_config(config)[0]] if hasattr(baseline, "env_from_config") else []
    train = baseline.make_train(config, *environment)
    key = jax.random.PRNGKey(0)
    started = time.perf_counter()
    program = jax.jit(train).lower(key).compile()
    compiled = time.perf_counter()
    jax.block_until_ready(program(key))
    seconds = time.perf_counter() - compiled
    return {
        "steps_per_s": updates * rollout / seconds,
        "seconds": seconds,
        "compilation_s": compiled - started,
        "versions": {**versions(jax), "commit": commit(checkout)},
    }


def load(checkout: Path, script: Path) -> ModuleType:
    """Imports a baseline script, with a W&B that logs nothing."""
    nothing = SimpleNamespace(log=lambda *_, **__: None, init=lambda *_, **__: None)
    sys.modules["wandb"] = nothing  # pyright: ignore[reportArgumentType]
    sys.path[:0] = [str(checkout), str(script.parent)]
    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def versions(jax: ModuleType) -> dict[str, str]:
    """Versions of jax, jaxlib and JaxMARL."""
    import jaxlib  # pyright: ignore[reportMissingImports]
    import jaxmarl  # pyright: ignore[reportMissingImports]

    return {"jax": jax.__version__, "jaxlib": jaxlib.__version__, "jaxmarl": jaxmarl.__version__}


def commit(checkout: Path) -> str | None:
    """Commit of a checkout; None for a folder that is no checkout, also if a folder around it is one."""
    if not (checkout / ".git").exists():
        return None
    words = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    checkout, script, config_file = (Path(word) for word in sys.argv[1:4])
    print(json.dumps(measure(checkout.resolve(), script, config_file, float(sys.argv[4]), sys.argv[5:])))
