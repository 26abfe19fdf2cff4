"""Names of settings from the source, and mistyped keys that are answered without PyTorch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from coterie.config import registry, source_fields

MISTYPED = [
    ("algo.lrr=1e-3", "Did you mean 'algo.lr'"),
    ("lr=1e-3", "Did you mean 'algo.lr'?"),
    ("stepz=5", "Did you mean 'steps'"),
    ("eval.evry=5", "Did you mean 'eval.every'"),
    ("env.local_ration=0.5", "Did you mean 'env.local_ratio'"),
    ("algo=qmix algo.n_stepz=5", "Did you mean 'algo.n_step'"),
    ("algo=mappo algo.mixer=vdn", "not a setting of algorithm 'mappo' but of ddqn, iql, qmix and 3 others"),
    ("use_rnn=true", "Set algo.rnn=gru, lstm or none."),
    ("env=particle/simple_tag teams.agent.algo=qmix teams.agent.algo.batch_siz=5", "'teams.agent.algo.batch_size'"),
    ("algo=mapo", "Did you mean 'mappo'"),
    ("env=particle/simple_sprad", "Did you mean 'particle/simple_spread'"),
]


@pytest.mark.parametrize("name", [*registry.ALGOS, *registry.VARIANTS])
def test_the_settings_of_every_algorithm_are_in_its_source(name: str):
    fields = source_fields.algorithm_fields(name)
    assert fields == tuple(registry.algorithm(name).Config.model_fields)
    assert all(map(source_fields.is_field_name, fields))
    assert not source_fields.is_field_name("lrr")


def test_the_settings_of_environments_are_in_their_source():
    families = ("particle", "matrix", "probe", "coop", "board", "sparse")
    for name in registry.environments():
        found = source_fields.environment_fields(name)
        if name.startswith(tuple(f"{family}/" for family in families)):
            assert found == tuple(registry.environment(name).Config.model_fields), name
        else:
            assert found is None, name  # of other libraries, or computed from a map


def test_settings_of_unknown_origin_are_not_read():
    assert source_fields.algorithm_fields("mine:Learner") is None
    assert source_fields.algorithm_fields("nothing") is None
    assert source_fields.environment_fields("gym/CartPole-v1") is None


def test_a_mistyped_key_is_answered_without_pytorch():
    program = (
        "import sys, coterie.__main__ as m\n"
        "for line in sys.stdin:\n"
        "    assert m.main(['train', *line.split()]) == 2\n"
        "    print('torch' in sys.modules, 'numpy' in sys.modules)\n"
    )
    given = "".join(f"{words}\n" for words, _ in MISTYPED)
    done = subprocess.run(
        [sys.executable, "-c", program], input=given, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["False False"] * len(MISTYPED)
    for line, (words, expected) in zip(done.stderr.splitlines(), MISTYPED, strict=True):
        assert expected in line, words
