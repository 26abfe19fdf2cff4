"""Throughput of JaxMARL's simple_spread with random actions, for the rows of `speed.py --cuda`.

    python benchmarks/jaxmarl_world.py NUM_ENVS SECONDS

prints environment steps per second. Needs `pip install jaxmarl` and a JAX for the GPU.
"""

from __future__ import annotations

import sys
import time

import jax  # pyright: ignore[reportMissingImports]
import jaxmarl  # pyright: ignore[reportMissingImports]

STEPS = 100
"""Steps of all environments per compiled call."""
_QUANTILE = 0.25


def measure(num_envs: int, seconds: float) -> float:
    """Returns environment steps per second, by the lower quartile of the calls' times."""
    env = jaxmarl.make("MPE_simple_spread_v3")

    def step(carry, _):
        key, state = carry
        key, draw, move = jax.random.split(key, 3)
        keys = jax.random.split(draw, (len(env.agents), num_envs))
        actions = {agent: jax.vmap(env.action_space(agent).sample)(own) for agent, own in zip(env.agents, keys)}  # noqa: B905
        _, state, reward, _, _ = jax.vmap(env.step)(jax.random.split(move, num_envs), state, actions)
        return (key, state), reward[env.agents[0]].sum()

    run = jax.jit(lambda carry: jax.lax.scan(step, carry, None, STEPS))
    key = jax.random.PRNGKey(0)
    _, state = jax.vmap(env.reset)(jax.random.split(key, num_envs))
    carry, _ = jax.block_until_ready(run((key, state)))  # compiles
    times, started = [], time.perf_counter()
    while not times or time.perf_counter() - started < seconds:
        before = time.perf_counter()
        carry, _ = jax.block_until_ready(run(carry))
        times.append(time.perf_counter() - before)
    return num_envs * STEPS / sorted(times)[int(len(times) * _QUANTILE)]


if __name__ == "__main__":
    print(measure(int(sys.argv[1]), float(sys.argv[2])))
