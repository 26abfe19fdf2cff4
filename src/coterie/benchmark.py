"""How fast a configuration trains on this machine, and where the time goes."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import torch

from coterie.build import Parts, build, environment
from coterie.config import Resolved
from coterie.envs.parts import Parted
from coterie.envs.vector import VectorEnv, advance, begin
from coterie.loop import joined
from coterie.policy import RandomPolicy
from coterie.process import settle
from coterie.rundir import describe
from coterie.schema import RunConfig
from coterie.seeds import generator
from coterie.types import Action, Window

PHASES = ("environment", "acting", "storing", "targets", "update")
"""Where time goes: env.step; policies; the rest of collecting; advantages and returns; minibatches, loss and steps."""

_WARM_UP = 2  # rounds: the first ones fill caches and choose kernels
_PLAIN, _TIMED = 0.5, 0.35  # parts of the time for the whole loop and for its phases; the rest is the world's
_TARGETS = ("_targets", "_sequences")  # what learners call the part of their update before the minibatches
_QUIET = 0.25
_POOL = 64  # steps of random actions, drawn before the world is timed


def bench(resolved: Resolved, seconds: float) -> dict[str, Any]:
    """Trains for about `seconds` without a run folder and returns plain numbers.

    env, algo, copies, horizon, threads, device: what was measured; steps_per_s: environment steps a second of the whole
    loop; steps_per_s_quiet: the same by the lower quartile of the windows' times, which a machine shared with others
    disturbs less; agent_steps_per_s; rounds: windows measured; time: for each of `PHASES` its share (they add up to 1)
    and ms_per_round (one update of every learner); world: steps_per_s of the environment alone with the same copies and
    random actions; memory: peak_mb of the process and of the GPU; machine: processor, cores, gpus, versions.
    """
    config = resolved.config
    settle(config.threads)
    parts = build(config)
    env = parts.collector.env
    loop = Loop(parts)
    try:
        for _ in range(_WARM_UP):
            loop.round()
        quiet, mean, rounds = _speed(loop, seconds * _PLAIN)
        spent = _phases(loop, seconds * _TIMED)
        world = world_alone(config, env.device, seconds * (1 - _PLAIN - _TIMED))
    finally:
        env.close()
        parts.evaluator.env.close()
    total = sum(spent.values())
    report = {
        "env": config.env.name,
        "algo": config.algo.name,
        "copies": config.copies,
        "horizon": loop.chunk,
        "threads": config.threads,
        "device": str(env.device),
        "steps_per_s": mean,
        "steps_per_s_quiet": quiet,
        "agent_steps_per_s": mean * env.spec.n,
        "rounds": rounds,
        "time": {name: {"share": t / total, "ms_per_round": 1000 * t} for name, t in spent.items()},
        "world": {"steps_per_s": world},
        "memory": memory(env.device),
    }
    return report | {"machine": _machine(config.threads)}


class Loop:
    """The training loop without logs, evaluations and checkpoints; a round is one update of every learner."""

    def __init__(self, parts: Parts):
        self.env, self.collector = parts.collector.env, parts.collector
        self.algorithms = {name: a for name, a in parts.algorithms.items() if a.capabilities.learns} or parts.algorithms
        self.chunk = min(a.horizon for a in self.algorithms.values())
        self.longest = max(a.horizon for a in self.algorithms.values())
        self.collecting = 0.0
        """Seconds spent in collecting so far."""

    def round(self) -> int:
        """Collects and updates until every learner has had a window; returns the environment steps."""
        pending: dict[str, list[Window]] = {name: [] for name in self.algorithms}
        steps = 0
        for _ in range(self.longest // self.chunk):
            began = time.perf_counter()
            windows, acted = self.collector.advance(self.chunk)
            steps += int(acted)  # waits for the device
            self.collecting += time.perf_counter() - began
            for name, algorithm in self.algorithms.items():
                pending[name].append(windows[name])
                if len(pending[name]) * self.chunk >= algorithm.horizon:
                    algorithm.update(joined(pending[name]) if len(pending[name]) > 1 else pending[name][0], 0.0)
                    pending[name] = []
        self.collector.statistics()
        return steps


def _speed(loop: Loop, seconds: float) -> tuple[float, float, int]:
    """Steps a second by the lower quartile of rounds' times and by their mean, and how many rounds there were."""
    times, steps, began = [], 0, time.perf_counter()
    while not times or time.perf_counter() - began < seconds:
        at = time.perf_counter()
        steps += loop.round()
        wait(loop.env.device)
        times.append(time.perf_counter() - at)
    quiet = sorted(times)[int(len(times) * _QUIET)]
    return steps / len(times) / quiet, steps / sum(times), len(times)


class Stopwatch:
    """Adds up the time that calls take, until the device has done their work."""

    def __init__(self, device: torch.device):
        self.seconds, self._device = 0.0, device

    def on(self, owner: Any, name: str) -> None:
        """Times every call of a method of one object."""
        call: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            wait(self._device)
            began = time.perf_counter()
            result = call(*args, **kwargs)
            wait(self._device)
            self.seconds += time.perf_counter() - began
            return result

        setattr(owner, name, timed)


def _phases(loop: Loop, seconds: float) -> dict[str, float]:
    """Seconds a round by phase, means over the rounds of about `seconds`."""
    device = loop.env.device
    watches = {name: Stopwatch(device) for name in ("environment", "acting", "targets", "whole_update")}
    if isinstance(loop.env, Parted):
        for part in loop.env.parts:
            watches["environment"].on(part, "send")
            watches["environment"].on(part, "receive")
    else:
        watches["environment"].on(loop.env, "step")
    for policy in loop.collector.policies.values():
        watches["acting"].on(policy, "act")
        watches["acting"].on(policy, "noise")
    for algorithm in loop.algorithms.values():
        watches["whole_update"].on(algorithm, "update")
        for name in _TARGETS:
            if hasattr(algorithm, name):
                watches["targets"].on(algorithm, name)
    loop.collecting, rounds, began = 0.0, 0, time.perf_counter()
    while not rounds or time.perf_counter() - began < seconds:
        loop.round()
        rounds += 1
    spent = {name: watch.seconds for name, watch in watches.items()}
    storing = loop.collecting - spent["environment"] - spent["acting"]
    update = spent["whole_update"] - spent["targets"]
    found = (spent["environment"], spent["acting"], storing, spent["targets"], update)
    return {name: max(t, 0.0) / rounds for name, t in zip(PHASES, found, strict=True)}


def world_alone(config: RunConfig, device: torch.device, seconds: float) -> float:
    """Steps a second of the environment with random actions, drawn beforehand; closing rows are not counted."""
    env = environment(config, config.copies, "train", device)
    try:
        pool = _random_actions(env)
        with torch.inference_mode():
            row = begin(env)
            for actions in pool:
                _, row = advance(env, actions)
            times, acted = [], []
            began = time.perf_counter()
            while not times or time.perf_counter() - began < seconds:
                wait(device)
                at = time.perf_counter()
                rows = []
                for actions in pool:
                    rows.append(row)
                    _, row = advance(env, actions)
                wait(device)
                times.append(time.perf_counter() - at)
                acted.append(sum(int(r.acted.sum()) for r in rows))
    finally:
        env.close()
    return sum(acted) / len(acted) / sorted(times)[int(len(times) * _QUIET)]


def _random_actions(env: VectorEnv) -> list[dict[str, Action]]:
    """Actions of everybody for `_POOL` steps. Masks are not asked, so that nothing is timed but the environment."""
    order = tuple(role.name for role in env.spec.roles)
    policy = RandomPolicy(env.spec.team("all", order), env.device)
    row = begin(env)
    noise = policy.noise(_POOL, env.copies, generator(0, "bench", device=env.device))
    return [policy.act(row, {}, drawn, "sample")[0] for drawn in noise]


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def memory(device: torch.device) -> dict[str, float | None]:
    """Peak megabytes of the process so far (None where the system does not say), and of PyTorch on the GPU if used."""
    found: dict[str, float | None] = {"peak_mb": _peak_mb()}
    if device.type == "cuda":
        found["gpu_peak_mb"] = torch.cuda.max_memory_allocated(device) / 2**20
    return found


def _peak_mb() -> float | None:
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)  # bytes there, kilobytes elsewhere


def _machine(threads: int) -> dict[str, Any]:
    found = describe(0, [], threads, datetime.now().astimezone())
    hardware = found["hardware"]
    return {
        "cpu": hardware["cpu"],
        "cores": hardware["cores"],
        "memory_mb": None if hardware["memory_bytes"] is None else hardware["memory_bytes"] // 2**20,
        "gpus": hardware["gpus"],
        "system": platform.platform(),
        "python": found["versions"]["python"],
        "torch": found["versions"]["torch"],
        "coterie": found["versions"]["coterie"],
    }
