"""Collection without Python between operations: policies by traces on a CPU, all of a rollout as a CUDA graph on a GPU.

A CUDA graph contains acting, steps of the environment, their noise and resets, which are started at once. A replay
writes to the memory of the one before. Rollouts are stacked from it, which copies them, before the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.algos.graphed import Graphed, StaticInputs
from coterie.core.errors import EnvironmentFailedError
from coterie.core.tree import Tree, tree_map
from coterie.core.types import Timestep
from coterie.envs.contract.captured import CapturableEnv
from coterie.envs.contract.vector import VectorEnv
from coterie.kernels import switch
from coterie.policies.base import Mode, Policy
from coterie.training.kernel_acting import collect_by_kernel, kernel_actor
from coterie.training.traced_acting import TracedActor, can_be_traced
from coterie.training.trajectory import Actor, StackedTrajectory, Trajectory, Watch, collect


class CollectFunction:
    """`collect`, as a CUDA graph if `cuda_graphs` is set and environment and policies can be captured.

    On a CPU with kernels, policies act by traces where they can be traced. Results are those of `collect`. The next
    call overwrites tensors in lists of a captured trajectory, but neither its last timestep nor its hidden states.
    """

    def __init__(self, cuda_graphs: bool = False) -> None:
        self.cuda_graphs = cuda_graphs
        self._graphed: GraphedCollection | None = None
        self.actors: dict[str, Actor] = {}
        """Policies, or traces of them, that acted in the last rollout without CUDA graphs, by team."""

    def __call__(
        self,
        env: VectorEnv,
        policies: dict[str, Policy],
        timestep: Timestep,
        hidden_state: dict[str, Tree],
        *,
        noise: dict[str, list[Tree]],
        modes: dict[str, Mode],
        watch: Watch | None = None,
    ) -> Trajectory | StackedTrajectory:
        """Arguments as those of `collect`.

        Raises:
            UserError: If the operations of environment or policies cannot be captured.
        """
        if not self.cuda_graphs or not isinstance(env, CapturableEnv) or obstacle(env, policies) is not None:
            self._graphed = None
            with_traces = switch.on and env.device.type == "cpu"
            self.actors = self._traced(policies) if with_traces else {**policies}
            if watch is None:
                found = collect_by_kernel(env, self.actors, timestep, hidden_state, noise=noise, modes=modes)
                if found is not None:
                    return found
            return collect(env, self.actors, timestep, hidden_state, noise=noise, modes=modes, watch=watch)
        if self._graphed is None or not self._graphed.is_of(env, policies, modes):
            self._graphed, self.actors = GraphedCollection(env, policies, modes), {}
        trajectory = self._graphed(timestep, hidden_state, noise)
        if watch is not None:
            for step, then in zip(trajectory.steps, trajectory.timesteps[1:], strict=True):
                watch.step(step, then)
        return trajectory

    def _traced(self, policies: dict[str, Policy]) -> dict[str, Actor]:
        """Returns the policies: by the kernel that acts if it can, else by traces if they can be traced."""
        actors: dict[str, Actor] = {}
        for name, policy in policies.items():
            by_kernel = kernel_actor(policy, self.actors.get(name))
            actors[name] = policy if by_kernel is None else by_kernel
            if by_kernel is None and can_be_traced(policy):
                known = self.actors.get(name)
                actor = known if isinstance(known, TracedActor) and known.policy is policy else TracedActor(policy)
                actor.start_rollout()
                actors[name] = actor
        return actors

    @property
    def captures(self) -> int:
        """Number of captures of the present environment and policies."""
        return 0 if self._graphed is None else self._graphed.captures


def obstacle(env: VectorEnv, policies: dict[str, Policy]) -> str | None:
    """Returns why collection from `env` cannot be captured as a CUDA graph; None if it can."""
    if env.device.type != "cuda":
        return f"{env.spec.name} is on the device {env.device}"
    if not isinstance(env, CapturableEnv) or not env.cuda_graphs:
        return f"steps of {env.spec.name} do not consist of operations on the GPU only"
    for name, policy in policies.items():
        if not policy.cuda_graphs:
            return f"the policy of team {name} does not act by operations on the GPU and tensors only"
    return None


@dataclass
class _Rollouts:
    """Rollouts of one length."""

    graphed: Graphed
    inputs: StaticInputs


class GraphedCollection:
    """Rollouts of some policies in an environment, captured as one CUDA graph for each rollout length.

    Args:
        env: Environments to step.
        policies: Policies by team.
        modes: Action selection by team.
    """

    def __init__(self, env: CapturableEnv, policies: dict[str, Policy], modes: dict[str, Mode]):
        self._env, self._policies, self._modes = env, dict(policies), dict(modes)
        self._generators, self._constants = tuple(env.generators), env.constants
        self._constants_of_policies = {name: policy.constants for name, policy in policies.items()}
        self._by_length: dict[int, _Rollouts] = {}

    def is_of(self, env: VectorEnv, policies: dict[str, Policy], modes: dict[str, Mode]) -> bool:
        """Returns True if this environment and these policies are captured, with their present constants."""
        return (
            env is self._env
            and policies.keys() == self._policies.keys()
            and all(policy is self._policies[name] for name, policy in policies.items())
            and all(policy.constants == self._constants_of_policies[name] for name, policy in policies.items())
            and modes == self._modes
            and all(new is old for new, old in zip(self._env.generators, self._generators, strict=True))
            and self._env.constants == self._constants
        )

    def __call__(self, timestep: Timestep, hidden_state: dict[str, Tree], noise: dict[str, list[Tree]]) -> Trajectory:
        """Collects a rollout. Arguments as those of `collect`."""
        steps = len(next(iter(noise.values())))
        if steps not in self._by_length:
            self._by_length[steps] = self._rollouts(steps)
        rollouts = self._by_length[steps]
        # A first capture in inference mode makes later ones outside of it fail, such as those of gradient steps, since
        # both write to the same tensors of generators: https://github.com/pytorch/pytorch/issues/166792.
        with torch.inference_mode(False), torch.no_grad():
            stacked = {name: tree_map(lambda *x: torch.stack(x), *own) for name, own in noise.items()}
            inputs = rollouts.inputs.load((self._env.tensors(), timestep, hidden_state, stacked))
            trajectory, env_tensors = rollouts.graphed(*inputs)
            self._env.set_tensors(tree_map(torch.clone, env_tensors))
            return replace(
                trajectory,
                timesteps=[*trajectory.timesteps[:-1], tree_map(torch.clone, trajectory.timesteps[-1])],
                hidden_state=tree_map(torch.clone, trajectory.hidden_state),
            )

    def _rollouts(self, steps: int) -> _Rollouts:
        def rollout(env_tensors: Tree, timestep: Timestep, hidden_state: dict[str, Tree], noise: dict[str, Tree]):
            return self._collect(
                env_tensors,
                timestep,
                hidden_state,
                {name: [tree_map(lambda x, t=t: x[t], own) for t in range(steps)] for name, own in noise.items()},
            )

        what = f"collection in {self._env.spec.name}"
        return _Rollouts(Graphed(rollout, reads=self._weights, generators=self._generators, what=what), StaticInputs())

    def _collect(
        self, env_tensors: Tree, timestep: Timestep, hidden_state: dict[str, Tree], noise: dict[str, list[Tree]]
    ) -> tuple[Trajectory, Tree]:
        """Collects a rollout that starts with given tensors of the environment.

        Returns:
            The trajectory, and the tensors of the environment after it.
        """
        before = self._env.tensors()
        self._env.set_tensors(env_tensors)
        try:
            trajectory = collect(self._env, self._policies, timestep, hidden_state, noise=noise, modes=self._modes)
            return trajectory, self._env.tensors()
        except EnvironmentFailedError as error:
            if isinstance(error.__cause__, RuntimeError):
                raise error.__cause__ from error  # of the capture, which `Graphed` reports
            raise
        finally:
            self._env.set_tensors(before)

    def _weights(self) -> list[Tensor]:
        networks = [network for policy in self._policies.values() for network in policy.networks]
        return [x for network in networks for x in (*network.parameters(), *network.buffers())]

    @property
    def captures(self) -> int:
        """Number of captures so far."""
        return sum(rollouts.graphed.captures for rollouts in self._by_length.values())
