"""Returns to compare a run with: those of random policies, and published ones."""

from __future__ import annotations

from coterie.config.schema import RunConfig
from coterie.core.seeds import seed_of
from coterie.policies.base import Mode, Policy, RandomPolicy
from coterie.runs import reference_scores
from coterie.runs.folder import RunFolder
from coterie.runs.progress import PeriodicProgress, Progress
from coterie.training.evaluation import ProgressCallback, evaluate
from coterie.training.run_parts import RunComponents


def write_reference_returns(config: RunConfig, folder: RunFolder, components: RunComponents, display: Progress) -> None:
    """Writes returns to compare with into the manifest: random policies', and published ones. Once per run."""
    ranks = components.ranks
    manifest = folder.read_manifest()
    if not ranks.is_first:
        ranks.broadcast(None)  # the others wait
        return
    if "random" not in manifest and config.eval.every != 0:
        waiting = PeriodicProgress(display.print_line, "random policy, for comparison")
        random = random_returns(config, components, waiting)
        published = reference_scores.published_scores(config, components.teams)
        levels = {"random": random} | ({"published": published} if published else {})
        folder.write_manifest(manifest | {"random": random, "published": published, "levels": levels})
    if ranks.size > 1:
        ranks.broadcast(b"")


def random_returns(
    config: RunConfig, components: RunComponents, on_progress: ProgressCallback | None = None
) -> dict[str, float]:
    """Returns the mean return of every team if all act at random, over as many episodes as an evaluation."""
    env = components.evaluator.env
    policies: dict[str, Policy] = {name: RandomPolicy(team, env.device) for name, team in components.teams.items()}
    modes: dict[str, Mode] = dict.fromkeys(policies, "sample")
    found = evaluate(
        env,
        policies,
        episodes=config.eval.episodes,
        modes=modes,
        seed=seed_of(config.seed, "random"),
        on_progress=on_progress,
    )
    return {name: found.return_mean(name) for name in policies}
