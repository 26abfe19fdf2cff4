"""Training speed of a configuration on this machine, by phase."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from typing import Any

import torch

from coterie.assembly.arithmetic import configure_arithmetic
from coterie.assembly.build import build
from coterie.assembly.environment import make_environment
from coterie.assembly.resolve import Resolved
from coterie.config.schema import RunConfig
from coterie.core.process import configure_process, measured_threads, rare_garbage_collection
from coterie.core.seeds import generator
from coterie.core.types import Action, Rollout
from coterie.envs.contract.partial_step import PartitionedEnv
from coterie.envs.contract.vector import VectorEnv, closed, reset_env, step_env
from coterie.policies.base import RandomPolicy
from coterie.runs.description import describe
from coterie.training.kernel_acting import KernelActor
from coterie.training.rollout_builder import concatenate_rollouts
from coterie.training.run_parts import RunComponents

PHASES = ("environment", "acting", "storing", "targets", "update")
"""Phases of training: env.step; policies; the rest of collecting; advantages and returns; gradient steps.

A rollout that is captured as a CUDA graph calls neither env.step nor policies: all of it is the rest of collecting.
Targets that are part of a gradient step, as off-policy ones are, count as update once the step is traced or captured.
Timesteps that a kernel takes in a world, in particle/simple_spread those that neither end nor begin an episode, count
as acting, the world included.
"""

_WARM_UP_ROUNDS = 2  # the first rounds fill caches and select kernels
_LOOP_SHARE, _PHASES_SHARE = 0.5, 0.35  # shares of the time for the whole loop and its phases; the rest is for the env
_TARGET_METHODS = ("targets", "_next_value")  # methods of algorithms that run before the minibatches
_QUANTILE = 0.25
_ACTION_STEPS = 64  # steps of random actions, sampled before the environment is timed


def bench(resolved: Resolved, seconds: float) -> dict[str, Any]:
    """Trains for about `seconds` without a run folder and returns plain numbers and strings.

    Returns:
        env, algo, num_envs, rollout_length, threads, device, kernels, precision, cuda_graphs: the configuration.
        steps_per_s: Environment steps per second of the whole loop.
        steps_per_s_quiet: The same by the lower quartile of the rounds' times, which other processes disturb less.
        agent_steps_per_s: steps_per_s times the number of agents.
        rounds: Number of rounds measured.
        time: For each of `PHASES` its share, which add up to 1, and ms_per_round (one update of every algorithm).
        world: steps_per_s of the environment alone with random actions.
        memory: peak_mb of the process and gpu_peak_mb.
        machine: Processor, cores, GPUs and versions.
    """
    config = resolved.config
    threads = measured_threads(config.threads)
    configure_process(threads)
    kernels = configure_arithmetic(config)
    with closing(build(config)) as components, rare_garbage_collection():
        env = components.collector.env
        loop = TrainingLoop(components)
        for _ in range(_WARM_UP_ROUNDS):
            loop.run_round()
        quiet, mean, rounds = _measure_loop(loop, seconds * _LOOP_SHARE)
        phases = _measure_phases(loop, seconds * _PHASES_SHARE)
        env_speed = measure_env(config, env.device, seconds * (1 - _LOOP_SHARE - _PHASES_SHARE))
    total = sum(phases.values())
    report = {
        "env": config.env.name,
        "algo": config.algo.name,
        "num_envs": config.num_envs,
        "rollout_length": loop.chunk_length,
        "threads": threads,
        "device": str(env.device),
        "kernels": kernels.describe(),
        "precision": config.precision,
        "cuda_graphs": config.cuda_graphs,
        "steps_per_s": mean,
        "steps_per_s_quiet": quiet,
        "agent_steps_per_s": mean * env.spec.n,
        "rounds": rounds,
        "time": {name: {"share": t / total, "ms_per_round": 1000 * t} for name, t in phases.items()},
        "world": {"steps_per_s": env_speed},
        "memory": memory(env.device),
    }
    return report | {"machine": _machine(threads)}


class TrainingLoop:
    """The training loop without logs, evaluations and checkpoints. A round is one update of every algorithm."""

    def __init__(self, components: RunComponents):
        self.env, self.collector = components.collector.env, components.collector
        algorithms = components.algorithms
        self.algorithms = {name: a for name, a in algorithms.items() if a.capabilities.learns} or algorithms
        self.chunk_length = min(a.rollout_length for a in self.algorithms.values())
        self._max_rollout_length = max(a.rollout_length for a in self.algorithms.values())
        self.collect_s = 0.0
        """Seconds spent on collecting so far."""

    def run_round(self) -> int:
        """Collects and updates until every algorithm has had a rollout; returns the environment steps."""
        pending: dict[str, list[Rollout]] = {name: [] for name in self.algorithms}
        steps = 0
        for _ in range(self._max_rollout_length // self.chunk_length):
            started = time.perf_counter()
            rollouts, env_steps = self.collector.advance(self.chunk_length)
            steps += env_steps
            self.collect_s += time.perf_counter() - started
            for name, algorithm in self.algorithms.items():
                pending[name].append(rollouts[name])
                if len(pending[name]) * self.chunk_length >= algorithm.rollout_length:
                    algorithm.update(concatenate_rollouts(pending[name]), 0.0)
                    pending[name] = []
        self.collector.pop_finished()
        return steps


def _measure_loop(loop: TrainingLoop, seconds: float) -> tuple[float, float, int]:
    """Returns steps per second by the lower quartile of the rounds' times and by their mean, and the rounds."""
    times, steps, started = [], 0, time.perf_counter()
    while not times or time.perf_counter() - started < seconds:
        round_started = time.perf_counter()
        steps += loop.run_round()
        synchronize(loop.env.device)
        times.append(time.perf_counter() - round_started)
    quiet = sorted(times)[int(len(times) * _QUANTILE)]
    return steps / len(times) / quiet, steps / sum(times), len(times)


class Stopwatch:
    """Sums the time that calls take, including their work on the device."""

    def __init__(self, device: torch.device):
        self.seconds, self._device = 0.0, device

    def attach(self, owner: Any, name: str) -> None:
        """Times every call of a method of one object."""
        call: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            synchronize(self._device)
            started = time.perf_counter()
            result = call(*args, **kwargs)
            synchronize(self._device)
            self.seconds += time.perf_counter() - started
            return result

        setattr(owner, name, timed)


def _measure_phases(loop: TrainingLoop, seconds: float) -> dict[str, float]:
    """Returns seconds per round by phase, averaged over about `seconds`."""
    device = loop.env.device
    watches = {name: Stopwatch(device) for name in ("environment", "acting", "targets", "whole_update")}
    if isinstance(loop.env, PartitionedEnv):
        for part in loop.env.parts:
            watches["environment"].attach(part, "send")
            watches["environment"].attach(part, "receive")
    else:
        watches["environment"].attach(loop.env, "step")
    for actor in loop.collector.actors.values():
        watches["acting"].attach(actor, "act")
        if isinstance(actor, KernelActor):
            watches["acting"].attach(actor, "advance")
    for policy in loop.collector.policies.values():
        watches["acting"].attach(policy, "draw_noise")
    for algorithm in loop.algorithms.values():
        watches["whole_update"].attach(algorithm, "update")
        for name in _TARGET_METHODS:
            if hasattr(algorithm, name):
                watches["targets"].attach(algorithm, name)
    loop.collect_s, rounds, started = 0.0, 0, time.perf_counter()
    while not rounds or time.perf_counter() - started < seconds:
        loop.run_round()
        rounds += 1
    spent = {name: watch.seconds for name, watch in watches.items()}
    storing = loop.collect_s - spent["environment"] - spent["acting"]
    update = spent["whole_update"] - spent["targets"]
    found = (spent["environment"], spent["acting"], storing, spent["targets"], update)
    return {name: max(t, 0.0) / rounds for name, t in zip(PHASES, found, strict=True)}


def measure_env(config: RunConfig, device: torch.device, seconds: float) -> float:
    """Returns steps per second of the environment with random actions, sampled beforehand, without final timesteps."""
    env = make_environment(config, "train", num_envs=config.num_envs, device=device)
    with closed(env), torch.inference_mode():
        action_sequence = _random_actions(env)
        timestep = reset_env(env)
        for actions in action_sequence:
            _, timestep = step_env(env, actions)
        times, acted = [], []
        started = time.perf_counter()
        while not times or time.perf_counter() - started < seconds:
            synchronize(device)
            round_started = time.perf_counter()
            timesteps = []
            for actions in action_sequence:
                timesteps.append(timestep)
                _, timestep = step_env(env, actions)
            synchronize(device)
            times.append(time.perf_counter() - round_started)
            acted.append(sum(int(t.acted.sum()) for t in timesteps))
    return sum(acted) / len(acted) / sorted(times)[int(len(times) * _QUANTILE)]


def _random_actions(env: VectorEnv) -> list[dict[str, Action]]:
    """Samples actions of all agents. Ignores masks, so that nothing but the environment is timed."""
    order = tuple(role.name for role in env.spec.roles)
    policy = RandomPolicy(env.spec.team("all", order), env.device)
    timestep = reset_env(env)
    noise = policy.draw_noise(_ACTION_STEPS, env.num_envs, generator(0, "bench", device=env.device))
    return [policy.act(timestep, {}, own, "sample")[0] for own in noise]


def synchronize(device: torch.device) -> None:
    """Waits until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def memory(device: torch.device) -> dict[str, float | None]:
    """Returns peak megabytes of the process, None if unknown, and of PyTorch on the GPU if it is used."""
    found: dict[str, float | None] = {"peak_mb": _peak_mb()}
    if device.type == "cuda":
        found["gpu_peak_mb"] = torch.cuda.max_memory_allocated(device) / 2**20
    return found


def _peak_mb() -> float | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)  # bytes on macOS, kilobytes elsewhere


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
