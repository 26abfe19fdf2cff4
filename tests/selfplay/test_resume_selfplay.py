"""A self-play that was stopped and resumed ends with the same bits, its pool and ladder included."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie import run
from tinyruns import assert_same, rows_of, state_of, stop_at, train

pytestmark = pytest.mark.usefixtures("without_curves")

RPS = ("env=matrix/rock_paper_scissors", "env.episode_limit=5", "selfplay.every=60", "selfplay.games=8")
TAG = ("env=particle/simple_tag", "selfplay.every=60", "selfplay.games=4", "turns.every=100", "env.episode_limit=10")
CASES = {
    "one policy for both sides": (*RPS, "algo=ippo", "selfplay.opponents=uniform"),
    "prioritised, recurrent, on one side": (
        *(*RPS, "algo=ippo", "algo.memory=gru", "algo.memory_size=6", "selfplay.sides=first"),
        *("selfplay.opponents=pfsp", "selfplay.latest=0.2", "selfplay.window=2"),
    ),
    "by turns": (*TAG, "algo=mappo", "selfplay.opponents=recency"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_self_play_ends_with_the_same_bits(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(whole, "steps=400", *CASES[case])
    for stop in (130, 290):
        with monkeypatch.context() as patch:
            stop_at(patch, stop)
            if stop == 130:
                train(parts, "steps=400", *CASES[case])
            else:
                run.resume(parts, [])
    run.resume(parts, [])
    one, other = state_of(whole), state_of(parts)
    assert len(one["guides"]["selfplay"]["ladder"]["players"]) >= 5
    assert_same(one, other)
    assert rows_of(whole) == rows_of(parts)
