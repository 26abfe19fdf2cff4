from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.rank_threads import on_ranks

from coterie.assembly.build import build
from coterie.assembly.resolve import resolve
from coterie.core.process import most_threads
from coterie.ranks.ranks import ONE, Ranks
from coterie.runs import loggers
from coterie.runs.checkpoints import Checkpoints
from coterie.runs.progress import progress
from coterie.runs.snapshots import PolicySnapshots
from coterie.training import selfplay_callback
from coterie.training.evaluation import Evaluation, evaluate
from coterie.training.rank_states import num_ranks
from coterie.training.run_parts import Outputs, Schedule
from coterie.training.trainer import Trainer

_SMALL = "algo.hidden_sizes=[8] kernels=off eval.episodes=4 eval.num_envs=2 num_envs=4 algo.rollout_length=10"
_SPREAD = "env=particle/simple_spread env.agents=2 env.episode_limit=5 algo=ippo"
_LESSONS = (
    "[{name: near, parameters: {speed: 0.5}, advance: {metric: steps, above: 60}}, {name: far, parameters: {speed: 1}}]"
)
_POOL = "selfplay.opponents=uniform selfplay.rating_episodes=4 selfplay.snapshot_interval=20 selfplay.window=2"
_CASES = {
    "evaluation": _SPREAD,
    "curriculum": f"{_SPREAD} 'curriculum.lessons={_LESSONS}'",
    "randomized": f"{_SPREAD} randomize.speed.uniform=[0.5,1.5]",
    "external": "env=gym/CartPole-v1 env.episode_limit=6 algo=ppo",
    "early ends": "env=skirmish/3m env.episode_limit=12 algo=mappo",
    "self-play": f"env=particle/simple_ball env.episode_limit=5 algo=ippo {_POOL}",
}


def _log(
    words: str, ranks: Ranks, folder: Path, steps: int = 160, prepare: Callable[[Trainer], None] = lambda trainer: None
) -> list[dict[str, Any]]:
    """Trains and returns what this rank logs, without times. `prepare` is called before."""
    own = folder / f"{ranks.size}-{ranks.rank}"
    own.mkdir(parents=True)
    torch.set_num_threads(1)
    config = resolve([*_split(words), *_SMALL.split(), f"steps={steps}"]).config
    metrics_file = loggers.JsonlLogger(own / "metrics.jsonl")
    outputs = Outputs(
        metrics_file=metrics_file,
        logger=metrics_file,
        checkpoints=Checkpoints(own / "checkpoints"),
        progress=progress("off", title="", start=0),
        metadata={},
        snapshots=PolicySnapshots(own / "snapshot", 0),
    )
    schedule = Schedule(steps=steps, eval_every=80, checkpoint_every=80, log_every=1)
    with closing(metrics_file), closing(build(config, ranks)) as components:
        trainer = Trainer(components, schedule, outputs)
        prepare(trainer)
        trainer.run()
    rows = loggers.read(own / "metrics.jsonl")
    return [{name: x for name, x in row.items() if not name.startswith("time/")} for row in rows]


def _split(words: str) -> list[str]:
    """Splits words at spaces, except within quotes."""
    parts = words.split("'")
    return [word for i, part in enumerate(parts) for word in ([part] if i % 2 else part.split())]


@pytest.mark.parametrize("case", _CASES)
def test_the_log_of_two_ranks_is_that_of_one(case: str, tmp_path: Path) -> None:
    words, before = _CASES[case], torch.get_num_threads()
    alone = _log(words, ONE, tmp_path)
    together = on_ranks(2, lambda ranks: _log(words, ranks, tmp_path))
    torch.set_num_threads(min(before, most_threads()))
    assert len(alone) > 5
    for log in together:
        assert [row.keys() for row in log] == [row.keys() for row in alone]
        for expected, found in zip(alone, log, strict=True):
            assert found == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert not (tmp_path / "2-1" / "checkpoints").exists() or not list((tmp_path / "2-1" / "checkpoints").iterdir())
    saved = Checkpoints(tmp_path / "2-0" / "checkpoints").latest()
    assert saved is not None
    assert num_ranks(saved.state) == 2


def test_all_ranks_log_the_times_of_rank_0_by_which_lessons_may_advance(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    on_ranks(2, lambda ranks: _log(_SPREAD, ranks, tmp_path))
    torch.set_num_threads(min(before, most_threads()))
    first, second = (loggers.read(tmp_path / f"2-{rank}" / "metrics.jsonl") for rank in range(2))
    assert any("time/steps_per_s" in row for row in first)
    assert first == second


def test_rating_games_are_played_by_rank_0_and_decide_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def played(*arguments: Any, **options: Any) -> Evaluation:
        threads.append(threading.get_ident())
        return evaluate(*arguments, **options)

    def log(ranks: Ranks) -> tuple[int, list[dict[str, Any]]]:
        return threading.get_ident(), _log(_CASES["self-play"], ranks, tmp_path)

    monkeypatch.setattr(selfplay_callback, "evaluate", played)
    before = torch.get_num_threads()
    (first, log_0), (_, log_1) = on_ranks(2, log)
    torch.set_num_threads(min(before, most_threads()))
    assert len(threads) > 1
    assert set(threads) == {first}
    assert log_0 == log_1


@pytest.mark.parametrize("moment", ["_evaluation_metrics", "_save"])
def test_a_stop_that_only_rank_0_knows_ends_all_ranks_with_a_checkpoint(moment: str, tmp_path: Path) -> None:
    def interrupt(trainer: Trainer) -> None:
        """Requests a stop in the first evaluation or checkpoint after the start, as a signal would."""
        function = getattr(trainer, moment)

        def called(*arguments: Any) -> Any:
            found = function(*arguments)
            if trainer.steps >= 80:
                trainer.request_stop()
            return found

        setattr(trainer, moment, called)

    def stopped(ranks: Ranks) -> list[dict[str, Any]]:
        prepare = interrupt if ranks.is_first else lambda trainer: None
        return _log(_SPREAD, ranks, tmp_path, steps=400, prepare=prepare)

    before = torch.get_num_threads()
    logs = on_ranks(2, stopped)
    torch.set_num_threads(min(before, most_threads()))
    saved = Checkpoints(tmp_path / "2-0" / "checkpoints").latest()
    assert saved is not None
    assert 80 <= saved.steps < 160
    assert [log[-1]["steps"] for log in logs] == [saved.steps, saved.steps]
