"""Values that the user has given and that have no effect, as lines for the start of a run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from coterie.config.needs import Idle, Section, idle_settings, lines
from coterie.config.provenance import Resolved
from coterie.core.specs import TeamSpec
from coterie.envs import registry as env_registry
from coterie.policies.base import Policy
from coterie.policies.network_policy import NetworkPolicy


def idle_lines(
    resolved: Resolved, teams: Mapping[str, TeamSpec], policies: Mapping[str, Policy] | None = None
) -> list[str]:
    """Returns a line for each reason why values that the user has given have no effect.

    A default value is not named beside a value of the user that leaves it without effect, as in a file of all settings.

    Args:
        resolved: The settings.
        teams: Teams by name.
        policies: Their policies, if they are known.
    """
    config, given, policies = resolved.config, resolved.given, policies or {}
    env = {"external_env": config.env.name.partition("/")[0] not in env_registry.FAMILIES}
    others = [name for name in teams if name not in config.teams]
    run = Section(config, "", env | _facts(others, teams, policies))
    sections = [
        (run, ("algo", "env", "teams")),
        (Section(config.algo.params, "algo.", run.facts, run), ()),
        (Section(config.env.params, "env.", env, run), ()),
    ]
    for name, team in config.teams.items():
        own = Section(team, f"teams.{name}.", env | _facts([name] if name in teams else [], teams, policies), run)
        sections.append((own, ("algo",)))
        sections.append((Section(team.algo.params, f"teams.{name}.algo.", own.facts, own), ()))
    idle = [found for section, without in sections for found in idle_settings(section, without)]
    idle = [x for x in idle if x.key in given and not (x.is_default and x.because and given.issuperset(x.because))]
    return lines([*idle, *_unread_by_teams(resolved, given, teams)])


def _facts(names: Sequence[str], teams: Mapping[str, TeamSpec], policies: Mapping[str, Policy]) -> dict[str, bool]:
    """Returns the facts of settings that some teams share: what is True for any of them; none without teams."""
    if not names:
        return {}
    actions = [role.action for name in names for role in teams[name].roles]
    facts = {
        "continuous_actions": any(action.continuous for action in actions),
        "discrete_actions": any(action.choices for action in actions),
        "several_agents": any(teams[name].n > 1 for name in names),
    }
    cloned = [p for name in names if isinstance(p := policies.get(name), NetworkPolicy)]
    if len(cloned) == len(names):
        read = {option for policy in cloned for option in policy.cloning_options}
        facts |= {"q_values": "margin" in read, "gaussian_actions": "fit_std" in read and facts["continuous_actions"]}
        facts["hidden_layers"] = any(policy.hidden_layers for policy in cloned)
    return facts


def _unread_by_teams(resolved: Resolved, given: Collection[str], teams: Collection[str]) -> Iterator[Idle]:
    """Yields the settings of the top-level algorithm that no team takes."""
    if not set(teams) <= resolved.config.teams.keys():
        return
    for key in sorted(given):
        inherited = [resolved.origins.get(f"teams.{team}.{key}") == f"inherits {key}" for team in teams]
        if key.startswith("algo.") and key != "algo.name" and not any(inherited):
            reason = "as all teams have values of their own"
            yield Idle(key, reason, " and ".join(f"teams.{team}.{key}" for team in teams), (), is_default=False)
