"""Checks an environment against the contract of `coterie.envs.contract.vector` and explains how to fix violations."""

from __future__ import annotations

from collections.abc import Callable

import torch

from coterie.core.errors import UserError, message_of
from coterie.core.specs import EnvSpec
from coterie.core.team_report import describe_agents, describe_space, image_notes, why
from coterie.envs.contract.consistency_checks import ConsistencyChecks, MakeEnv
from coterie.envs.contract.invariants import InvariantChecker, describe_error
from coterie.envs.contract.report import RULES, CheckAborted, Finding, FindingCollector, Report
from coterie.envs.contract.traces import Trace, named_leaves

__all__ = ["Finding", "Report", "check"]


def check(make: MakeEnv, steps: int = 200, num_envs: int = 8) -> Report:
    """Tests an environment with random actions.

    Args:
        make: Called as `make(num_envs, seed)`, about a dozen times. It returns a new environment each time, which is
            closed afterwards.
        steps: Steps of the main run, at least 10. Up to five times as many are taken if a declared episode limit needs
            more.
        num_envs: Number of environments, at least 2.

    Returns:
        The report. Exceptions that the environment raises are findings, too.

    Raises:
        UserError: For too few steps or environments.
    """
    if steps < 10 or num_envs < 2:
        raise UserError(f"check: steps={steps}, num_envs={num_envs}; expected at least 10 steps and 2 environments")
    findings = FindingCollector(RULES)
    checks = ConsistencyChecks(make, num_envs, findings)
    main: list[tuple[EnvSpec, InvariantChecker]] = []
    _run(findings, "the main run", lambda: main.append(checks.main_run(steps)))
    if not main:
        return Report(checks.name, findings.findings())
    spec, invariants = main[0]
    for note in image_notes(spec):
        findings.add("channels-first", note)
    _run(findings, "the same-seed check", checks.same_seed)
    _run(findings, "the seed check", checks.different_seeds)
    _run(findings, "the reset check", lambda: checks.reset_in_mid_episode(spec))
    if not findings.has("determinism"):
        # These compare with the main run, which is meaningless if equal actions lead to different results.
        _run(findings, "the ignored-action check", lambda: checks.ignored_actions(spec))
        _run(findings, "the independence check", lambda: checks.independence(spec))
        _run(findings, "the action-clipping check", lambda: checks.action_clipping(spec))
        _run(findings, "the state_dict check", lambda: checks.saved_state(spec))
        _run(findings, "the render check", checks.render)
    _run(findings, "the single-environment check", lambda: checks.single_env(spec))
    speed: list[float] = []
    _run(findings, "the speed check", lambda: speed.append(checks.speed()))
    summary = _summary(spec, trace=checks.trace, lengths=invariants.lengths, num_envs=num_envs, speed=speed)
    return Report(spec.name, findings.findings(), summary)


def _run(findings: FindingCollector, name: str, check: Callable[[], object]) -> None:
    """Runs one check. Whatever it raises becomes a finding, so that the others run as well."""
    try:
        check()
    except CheckAborted:
        pass
    except UserError as error:
        findings.add("refused", f"{name}: {message_of(error)}", name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        findings.add("raises", f"{name} was stopped by {describe_error(error)}", name)


def _summary(spec: EnvSpec, *, trace: Trace, lengths: list[int], num_envs: int, speed: list[float]) -> dict[str, str]:
    """Properties of the environment by name."""
    default = spec.default_teams()
    summary = {"teams": f"{len(default)}: {', '.join(team.name for team in default)}, because {why(spec)}"}
    for role in spec.roles:
        spaces = f"observes {describe_space(role.observation_space)}; acts in {describe_space(role.action_space)}"
        summary[f"role {role.name}"] = f"{describe_agents(role.agents)}, of team {role.group}; {spaces}"
        values = torch.cat(
            [
                leaf.float().flatten()
                for timestep in trace.timesteps
                for leaf in named_leaves(timestep.obs[role.name]).values()
            ]
        )
        seen = f"{values.min():.4g} to {values.max():.4g}, mean {values.mean():.4g}" if values.numel() else "nothing"
        summary[f"obs {role.name}"] = seen
    if spec.notes:
        summary["notes"] = "; ".join(spec.notes)
    summary["states"] = ", ".join(f"{name} [{size}]" for name, size in spec.state_sizes.items()) or "none"
    summary["agents"] = "can be absent or end early" if spec.agents_can_die else "end with their episode"
    summary["resume"] = "bit-for-bit" if spec.exact_resume else "starts new episodes"
    summary["tested"] = f"{len(trace.steps)} steps of {num_envs} environments with random actions"
    limit = "" if spec.episode_limit is None else f", limit {spec.episode_limit}"
    if lengths:
        mean = sum(lengths) / len(lengths)
        summary["episodes"] = f"{len(lengths)} of {min(lengths)} to {max(lengths)} steps, mean {mean:.1f}{limit}"
        summary["random return"] = _random_return(spec, trace, len(lengths))
    else:
        summary["episodes"] = f"none ended{limit}"
    if speed:
        summary["speed"] = f"{speed[0]:,.0f} steps/s with {num_envs} environments"
    return summary


def _random_return(spec: EnvSpec, trace: Trace, episodes: int) -> str:
    """Mean return of finished episodes by group if there are group rewards, and by role, averaged over its agents.

    With group rewards, roles whose agents got no reward of their own are left out.
    """
    num_envs = len(trace.timesteps[0].acted)
    returns = torch.zeros(num_envs, spec.n, dtype=torch.float64)
    group_returns = torch.zeros(num_envs, len(spec.groups), dtype=torch.float64)
    total, group_total = returns[0].clone(), group_returns[0].clone()
    for t, step in enumerate(trace.steps):
        returns, group_returns = returns + step.reward, group_returns + step.group_reward
        ended = trace.episode_ended(t)
        total += returns[ended].sum(0)
        group_total += group_returns[ended].sum(0)
        returns = returns.masked_fill(ended[:, None], 0)
        group_returns = group_returns.masked_fill(ended[:, None], 0)
    rewarded = torch.stack([step.reward != 0 for step in trace.steps]).flatten(0, 1).any(0)
    means = [
        f"{name} {total[agents].mean() / episodes:.4g}"
        for name, agents in spec.role_slices().items()
        if not spec.has_group_reward or bool(rewarded[agents].any())
    ]
    parts = []
    if spec.has_group_reward:
        groups = zip(spec.groups, group_total.tolist(), strict=True)
        parts.append("per group " + ", ".join(f"{name} {value / episodes:.4g}" for name, value in groups))
    if means:
        parts.append("per agent " + ", ".join(means))
    return "; ".join(parts)
