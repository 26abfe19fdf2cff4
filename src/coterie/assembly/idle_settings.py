"""Values that the user has given and that have no effect, as lines for the start of a run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from coterie.config.needs import Idle, Section, idle_settings, lines
from coterie.config.provenance import Resolved
from coterie.core.specs import TeamSpec
from coterie.envs import registry as env_registry


def idle_lines(resolved: Resolved, teams: Mapping[str, TeamSpec]) -> list[str]:
    """Returns a line for each reason why values that the user has given have no effect.

    A default value is not named beside a value of the user that leaves it without effect, as in a file of all settings.
    """
    config, given = resolved.config, resolved.given
    env = {"external_env": config.env.name.partition("/")[0] not in env_registry.FAMILIES}
    top = env | _facts(team for name, team in teams.items() if name not in config.teams)
    sections = [
        (Section(config, "", top), ("algo", "env", "teams")),
        (Section(config.algo.params, "algo.", top), ()),
        (Section(config.env.params, "env.", env), ()),
    ]
    for name, team in config.teams.items():
        own = env | _facts([teams[name]] if name in teams else [])
        sections.append((Section(team, f"teams.{name}.", own), ("algo",)))
        sections.append((Section(team.algo.params, f"teams.{name}.algo.", own), ()))
    idle = [found for section, without in sections for found in idle_settings(section, config, without)]
    idle = [x for x in idle if x.key in given and not (x.is_default and x.because and given.issuperset(x.because))]
    return lines([*idle, *_unread_by_teams(resolved, given, teams)])


def _facts(teams: Iterable[TeamSpec]) -> dict[str, bool]:
    """Returns the facts of settings that some teams share: what is True for any of them; none without teams."""
    listed = list(teams)
    actions = [role.action for team in listed for role in team.roles]
    return (
        {}
        if not listed
        else {
            "continuous_actions": any(action.continuous for action in actions),
            "discrete_actions": any(action.choices for action in actions),
            "several_agents": any(team.n > 1 for team in listed),
        }
    )


def _unread_by_teams(resolved: Resolved, given: Collection[str], teams: Collection[str]) -> Iterator[Idle]:
    """Yields the settings of the top-level algorithm that no team takes."""
    if not set(teams) <= resolved.config.teams.keys():
        return
    for key in sorted(given):
        inherited = [resolved.origins.get(f"teams.{team}.{key}") == f"inherits {key}" for team in teams]
        if key.startswith("algo.") and key != "algo.name" and not any(inherited):
            reason = "as all teams have values of their own"
            yield Idle(key, reason, " and ".join(f"teams.{team}.{key}" for team in teams), (), is_default=False)
