"""Mistyped keys and names."""

from __future__ import annotations

import pytest

from coterie.__main__ import main

MISTYPED = [
    ("algo.lrr=1e-3", "Did you mean 'algo.lr'"),
    ("stepz=5", "Did you mean 'steps'"),
    ("eval.evry=5", "Did you mean 'eval.every'"),
    ("env.local_ration=0.5", "Did you mean 'env.local_ratio'"),
    ("algo=qmix algo.n_stepz=5", "Did you mean 'algo.n_step'"),
    ("algo=mappo algo.mixer=vdn", "not a setting of algorithm 'mappo' but of ddqn, iql, pqn and 8 others"),
    ("use_rnn=true", "Set algo.rnn=gru, lstm or none."),
    ("env=particle/simple_tag teams.agent.algo=qmix teams.agent.algo.batch_siz=5", "'teams.agent.algo.batch_size'"),
    ("algo=mapo", "Did you mean 'mappo'"),
    ("env=particle/simple_sprad", "Did you mean 'particle/simple_spread'"),
]


@pytest.mark.parametrize(("words", "expected"), MISTYPED)
def test_a_mistyped_key_is_answered_with_the_nearest_one(words: str, expected: str, capsys: pytest.CaptureFixture[str]):
    assert main(["train", *words.split()]) == 2
    assert expected in capsys.readouterr().err
