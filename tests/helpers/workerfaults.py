"""Workers that fail at messages outside a step, and trainers of workers in processes of their own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.config.schema import WorkersConfig
from coterie.core.types import Action, Step, Timestep
from coterie.envs.external.hosting.vector_adapter import BackendVectorEnv
from coterie.envs.external.workers import ray_workers
from coterie.envs.external.workers.processes import ProcessBackend

HANGING = "gym/faultyworlds:Counting-v0"
forgotten: list[ProcessBackend] = []
REQUESTS: dict[str, Callable[[Any, Any], Any]] = {
    "state": lambda env, saved: env.state_dict(),
    "load": lambda env, saved: env.load_state_dict(saved),
    "render": lambda env, saved: env.backend.render(3),
    "samplers": lambda env, saved: env.backend.set_samplers({}),
}
"""By name of a message to workers outside a step, a call that sends it to the last worker."""


def step_randomly(env: BackendVectorEnv) -> tuple[Step, Timestep]:
    """Takes a step of an environment with one agent and two choices, with random actions."""
    return env.step({"agent": Action(torch.randint(2, (env.num_envs, 1, 1)), None)})


def assert_lost(env: BackendVectorEnv, gone: Tensor) -> None:
    """Takes a step, in which `gone` environments begin new episodes, and one without a loss."""
    step, timestep = step_randomly(env)
    assert step.lost is not None
    assert step.lost.tolist() == gone.tolist()
    assert torch.equal(timestep.first[:, 0], gone)
    assert step_randomly(env)[0].lost is None


def assert_replaced_at(message: str, env: BackendVectorEnv, fail: Callable[[], object]) -> Any:
    """Lets the second of two workers with two environments each fail, and sends it a message.

    Returns:
        The result of the message.
    """
    env.reset()
    for _ in range(3):
        step_randomly(env)
    saved = env.state_dict()
    fail()
    result = REQUESTS[message](env, saved)
    if message != "load":
        assert_lost(env, torch.tensor([False, False, True, True]))
        return result
    step, timestep = step_randomly(env)  # the state replaces the new episodes
    assert step.lost is None
    assert not timestep.first.any()
    return result


def separate_errors() -> None:
    """Writes the errors of this process to a file of their own."""
    os.dup2(os.open("errors", os.O_WRONLY | os.O_CREAT), 2)


def lead_session(variables: dict[str, str]) -> None:
    """Makes this process the leader of a new session, and sets environment variables."""
    os.setsid()
    os.environ.update(variables)


def step_hanging_workers() -> None:
    """Steps two workers that hang in the third step, and never returns. Writes their processes to a file."""
    backend = ProcessBackend(HANGING, {"fault": "hangs"}, 4, WorkersConfig(count=2, timeout=500))
    backend.reset(0)
    _write("pids", " ".join(map(str, backend.pids)))
    _step_forever(backend)


def step_hanging_ray_worker() -> None:
    """Steps a worker of a local Ray that hangs in the third step, and never returns. Writes Ray's folder to a file."""
    config = WorkersConfig(count=1, kind="ray", timeout=500)
    backend = ray_workers.ray_backend(HANGING, {"fault": "hangs", "once": os.path.abspath("hangs")}, 2, config)
    backend.reset(0)
    _write("folder", ray_workers.connections["local"].folder)
    _step_forever(backend)


def forget_worker() -> None:
    """Starts a worker and does not close it."""
    forgotten.append(ProcessBackend("gym/CartPole-v1", {}, 2, WorkersConfig(count=1)))
    forgotten[-1].reset(0)


def wait_for(found: Callable[[], bool], seconds: float = 60.0) -> None:
    """Waits until a condition holds."""
    until = time.monotonic() + seconds
    while not found() and time.monotonic() < until:
        time.sleep(0.05)
    assert found()


def alive(pid: int) -> bool:
    """True for a process that has not ended, whether or not its parent knows."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _write(name: str, text: str) -> None:
    Path(f".{name}").write_text(text)
    Path(f".{name}").rename(name)


def _step_forever(backend: ProcessBackend) -> None:
    while True:
        backend.send()
        backend.receive()
