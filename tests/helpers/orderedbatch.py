"""A batch whose agents are listed in an order that tests change."""

from dataclasses import replace

from coterie.envs.contract.vector import VectorEnv
from coterie.envs.make import make

REVERSED = [False]


def spread(num_envs: int, seed: int, device: str) -> VectorEnv:
    """Simple spread; its agents are listed from the last to the first while `REVERSED` holds True."""
    env = make("particle/simple_spread", {}, num_envs, seed, device=device)
    (role,) = env.spec.roles
    agents = role.agents[::-1] if REVERSED[0] else role.agents
    env.spec = replace(env.spec, roles=(replace(role, agents=agents),))
    return env
