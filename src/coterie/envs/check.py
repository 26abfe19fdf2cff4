"""Whether an environment keeps the contract of `coterie.envs.vector`, and how to mend what does not."""

from __future__ import annotations

from collections.abc import Callable

import torch

from coterie.envs.findings import RULES, Broken, Finding, Notebook, Report
from coterie.envs.rules import Watch, leaves, told
from coterie.envs.trials import Make, Path, Trials
from coterie.errors import UserError
from coterie.types import EnvSpec

__all__ = ["Finding", "Report", "check"]


def check(make: Make, steps: int = 200, copies: int = 8) -> Report:
    """What testing an environment against all of the contract found.

    make: called as `make(copies, seed)`, a dozen times, each for an environment of its own that is closed afterwards;
    steps: how many the main trial takes with random actions, more (up to five times) where a declared episode limit
    wants it. Whatever the environment raises is a finding too. UserError for less than 10 steps or 2 copies.
    """
    if steps < 10 or copies < 2:
        raise UserError(f"check: steps={steps}, copies={copies}; expected at least 10 steps and 2 copies")
    book = Notebook(RULES)
    trials = Trials(make, copies, book)
    begun: list[tuple[EnvSpec, Watch]] = []
    _try(book, "the main trial", lambda: begun.append(trials.first(steps)))
    if not begun:
        return Report(trials.name, book.findings())
    spec, watch = begun[0]
    _try(book, "the trial of twins", trials.twin)
    _try(book, "the trial of seeds", trials.seeds)
    _try(book, "the trial of resets", lambda: trials.reset(spec))
    if not book.has("determinism"):
        # These compare with the main trial, which tells nothing where even the same actions bring something else.
        _try(book, "the trial of ignored actions", lambda: trials.ignored(spec))
        _try(book, "the trial of separate copies", lambda: trials.leak(spec))
        _try(book, "the trial of clipping", lambda: trials.clip(spec))
        _try(book, "the trial of saved states", lambda: trials.resume(spec))
        _try(book, "the trial of pictures", trials.render)
    _try(book, "the trial of one copy", lambda: trials.single(spec))
    speed: list[float] = []
    _try(book, "the trial of speed", lambda: speed.append(trials.speed()))
    return Report(spec.name, book.findings(), _facts(spec, trials.path, watch, copies, speed))


def _try(book: Notebook, name: str, trial: Callable[[], object]) -> None:
    """Runs a trial. Whatever goes wrong in it is a finding, so that the others are run as well."""
    try:
        trial()
    except Broken:
        pass
    except UserError as error:
        book.note("refused", f"{name}: {' '.join(str(error).split())}", name)
    except Exception as error:
        book.note("raises", f"{name} was stopped by {told(error)}", name)


def _facts(spec: EnvSpec, path: Path, watch: Watch, copies: int, speed: list[float]) -> dict[str, str]:
    """What there is to know, by name, as text."""
    facts = {}
    for role in spec.roles:
        who = f"{role.n} agent{'s' if role.n > 1 else ''} of group {role.group}"
        facts[f"role {role.name}"] = f"{who}; sees {role.observation_space}; does {role.action_space}"
        seen = torch.cat([leaf.float().flatten() for row in path.rows for leaf in leaves(row.obs[role.name]).values()])
        facts[f"seen by {role.name}"] = f"{seen.min():.4g} to {seen.max():.4g}, mean {seen.mean():.4g}"
    facts["states"] = ", ".join(f"{name} [{size}]" for name, size in spec.state_sizes.items()) or "none"
    facts["agents"] = "can be absent or end early" if spec.mortal else "live as long as their episode"
    facts["resume"] = "to the bit" if spec.exact_resume else "begins new episodes"
    facts["tested"] = f"{len(path.steps)} steps of {copies} copies with random actions"
    lengths = watch.lengths
    limit = "" if spec.episode_limit is None else f", limit {spec.episode_limit}"
    if lengths:
        mean = sum(lengths) / len(lengths)
        facts["episodes"] = f"{len(lengths)} ended after {min(lengths)} to {max(lengths)} steps, mean {mean:.1f}{limit}"
        facts["random return"] = _returns(spec, path, len(lengths))
    else:
        facts["episodes"] = f"none ended{limit}"
    if speed:
        facts["speed"] = f"{speed[0]:,.0f} steps/s with {copies} copies"
    return facts


def _returns(spec: EnvSpec, path: Path, episodes: int) -> str:
    """The mean return of finished episodes by role (mean over its agents), and by group where groups are paid."""
    agent = torch.zeros(len(path.rows[0].acted), spec.n, dtype=torch.float64)
    group = torch.zeros(len(path.rows[0].acted), len(spec.groups), dtype=torch.float64)
    total, group_total = agent[0].clone(), group[0].clone()
    for t, step in enumerate(path.steps):
        agent, group = agent + step.reward, group + step.group_reward
        ended = path.ended(t)
        total += agent[ended].sum(0)
        group_total += group[ended].sum(0)
        agent, group = agent.masked_fill(ended[:, None], 0), group.masked_fill(ended[:, None], 0)
    said = [f"{name} {total[place].mean() / episodes:.4g}" for name, place in spec.role_slices().items()]
    text = "an agent of " + ", ".join(said)
    if spec.paid_by_group:
        paid = zip(spec.groups, group_total.tolist(), strict=True)
        text += "; group " + ", ".join(f"{name} {value / episodes:.4g}" for name, value in paid)
    return text
