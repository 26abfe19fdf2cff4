"""Modules of the mutation campaign, the tests that answer for each, and the mutants of a module."""

from __future__ import annotations

import ast
import difflib
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "coterie"

Place = tuple[int, int]
"""Line, from 1, and column, from 0."""
Change = Callable[[], str]
"""Returns source with a change."""


@dataclass(frozen=True)
class Case:
    """Tests that answer for a module: its mirror in tests/, if there is one, and further files before it.

    Attributes:
        tests: Further test files, relative to tests/, run first.
        marks: Expression that selects tests by their marks, as pytest's -m.
        names: Expression that selects tests by their names, as pytest's -k.
    """

    tests: tuple[str, ...] = ()
    marks: str = ""
    names: str = ""


_FAST = "not slow"
_SHARED = ("algos/test_answers.py", "algos/test_mistakes.py")
_CLIPPED = ("algos/test_on_policy_losses.py", "algos/test_clipped_learner.py", "algos/test_algorithm.py")
_OF_BOTH = "not lstm and (clipped_learner"

CASES: dict[str, Case] = {
    "math/action_noise.py": Case(("math/test_action_sampling.py",)),
    "math/action_sampling.py": Case(),
    "math/adversarial_imitation.py": Case(),
    "math/behavior_cloning.py": Case(),
    "math/choices.py": Case(),
    "math/counterfactual.py": Case(("algos/test_on_policy_losses.py",), names="coma or counterfactual"),
    "math/distributions.py": Case(),
    "math/exploration.py": Case(),
    "math/indices.py": Case(),
    "math/intervals.py": Case(),
    "math/intrinsic_rewards.py": Case(),
    "math/inverse_transform.py": Case(),
    "math/policy_gradient.py": Case(("math/test_returns.py",)),
    "math/ratings.py": Case(),
    "math/returns.py": Case(),
    "math/running_moments.py": Case(),
    "math/squashed_gaussian.py": Case(("math/test_action_sampling.py",)),
    "math/statistics.py": Case(),
    "math/student_t.py": Case(),
    "algos/algorithm.py": Case(),
    "algos/behavior_cloning.py": Case(),
    "algos/clipped_learner.py": Case(),
    "algos/coma.py": Case(
        ("algos/test_on_policy_losses.py", "algos/test_coma_update.py", *_SHARED),
        _FAST,
        "coma and not lstm",
    ),
    "algos/ddpg.py": Case(("algos/test_ddpg_update.py", "algos/test_ddpg.py", *_SHARED), _FAST, "ddpg and not lstm"),
    "algos/ddpg_batch.py": Case(),
    "algos/ddpg_networks.py": Case(),
    "algos/frozen.py": Case(),
    "algos/graphed_minibatches.py": Case(
        ("gpu/test_graphs.py",), names="ippo or reads_no_more or resumed_learner or filled_up"
    ),
    "algos/graphed_steps.py": Case(
        ("gpu/test_graphed_steps.py",),
        names="reads_no_more or one_capture or refused or other_teams or asked_for or double or resumed and MASAC",
    ),
    "algos/mappo_original.py": Case(("algos/test_mappo_original_update.py",), _FAST),
    "algos/minibatches.py": Case(),
    "algos/off_policy.py": Case(),
    "algos/on_policy.py": Case(),
    "algos/optimizer.py": Case(("algos/test_optimizer_adam.py",), names="not import"),
    "algos/other_teams.py": Case(
        ("algos/test_other_teams_reader.py",), _FAST, "not learns and not exact and not finite"
    ),
    "algos/poca.py": Case((*_CLIPPED, "algos/test_poca.py", *_SHARED), _FAST, f"{_OF_BOTH} or poca) and not ppo"),
    "algos/ppo.py": Case((*_CLIPPED, *_SHARED), _FAST, f"{_OF_BOTH} or ppo) and not poca"),
    "algos/qlearning.py": Case(
        ("algos/test_off_policy.py", "algos/test_qlearning_update.py", "algos/test_qlearning.py", *_SHARED),
        _FAST,
        "(qlearning or iql or vdn or a_graph_contains) and not lstm",
    ),
    "algos/qlearning_networks.py": Case(),
    "algos/random.py": Case(),
    "algos/recurrent_q.py": Case(("algos/test_qlearning_update.py", "algos/test_qlearning.py"), _FAST),
    "algos/reward_streams.py": Case(),
    "algos/sac.py": Case(
        ("algos/test_off_policy.py", "algos/test_sac_update.py", "algos/test_sac.py", *_SHARED),
        _FAST,
        "(sac or a_graph_contains) and not lstm",
    ),
    "algos/sac_networks.py": Case(),
    "algos/scripted.py": Case(("algos/test_scripted_checks.py",), _FAST, "checks or users_script"),
    "algos/sequences.py": Case(),
    "algos/weighted_qmix.py": Case(),
    "algos/replay/buffer.py": Case((), _FAST),
    "algos/replay/checkpoint.py": Case(
        ("algos/replay/test_buffer.py",), _FAST, "resumed or segment or state or restart or after_a_truncation"
    ),
    "algos/replay/mapped_files.py": Case(("algos/replay/test_buffer.py",), _FAST, "disk or folder or mapped or file"),
    "algos/replay/memory.py": Case(("algos/replay/test_buffer.py",), _FAST, "memory or size or disk"),
    "algos/replay/prioritized.py": Case(),
    "algos/replay/spec.py": Case(),
    "algos/replay/sum_tree.py": Case(),
    "nets/action_critics.py": Case(),
    "nets/action_gradients.py": Case(("nets/test_action_critics.py",)),
    "nets/counterfactual_critic.py": Case(),
    "nets/decentralized_action_critic.py": Case(("nets/test_action_critics.py",)),
    "nets/encoders.py": Case(),
    "nets/entity_critic.py": Case(("nets/test_attention.py",)),
    "nets/initialization.py": Case(),
    "nets/joint_actions.py": Case(),
    "nets/last_actions.py": Case(),
    "nets/layer_norm.py": Case(),
    "nets/layers.py": Case(),
    "nets/mixer_variants.py": Case(("nets/test_mixers.py",)),
    "nets/mixers.py": Case(),
    "nets/normalization.py": Case(),
    "nets/recurrent.py": Case((), _FAST),
    "nets/relaxed_actions.py": Case(),
    "nets/soft_critics.py": Case(),
    "nets/squashed_actions.py": Case(("math/test_action_sampling.py", "policies/test_squashed.py")),
    "nets/stochastic_actor.py": Case(),
    "nets/team.py": Case(),
    "nets/user_body.py": Case(),
    "nets/value_critics.py": Case(),
}
"""By file of a module, relative to the package."""


@dataclass(frozen=True)
class Mutant:
    """One change of a module.

    Attributes:
        line: Number of the first line that changes.
        where: Qualified name of the function or class, or "module".
        before: The lines that change, without indentation.
        after: The lines instead of them.
        source: The whole module with the change.
    """

    line: int
    where: str
    before: str
    after: str
    source: str = field(repr=False)


def tests_of(module: str) -> list[str]:
    """Returns the test files of a module, relative to the repository."""
    path = Path(module)
    mirror = (path.parent / f"test_{path.name}").as_posix()
    names = [*CASES[module].tests, *[mirror] * (ROOT / "tests" / mirror).is_file()]
    return [f"tests/{name}" for name in dict.fromkeys(names)]


def sample(source: str, count: int, seed: str) -> tuple[list[Mutant], int]:
    """Draws mutants that Cosmic Ray's operators make of a module.

    Mutants of annotations are left out, and so are those that are no Python or the same program. Rounds go over all
    places in random order and take one mutant of each, so that a small sample changes as many places as possible.

    Args:
        source: Source of the module.
        count: Most mutants to draw.
        seed: Seed of the order.

    Returns:
        mutants, total: Those drawn, and the number that the module has.
    """
    generator = random.Random(seed)
    changes: dict[Place, list[Change]] = defaultdict(list)
    annotations = _annotations(source)
    for place, change in mutations(source):
        if not any(start <= place < end for start, end in annotations):
            changes[place].append(change)
    for at_place in changes.values():
        generator.shuffle(at_place)
    order = generator.sample(sorted(changes), len(changes))
    total = sum(map(len, changes.values()))
    found: list[Mutant] = []
    programs = {_program(source), None}
    rounds = zip_longest(*(changes[place] for place in order))
    for change in (change for a_round in rounds for change in a_round if change is not None):
        if len(found) == count:
            break
        mutant = change()
        program = _program(mutant)
        if program in programs:
            total -= 1
        else:
            programs.add(program)
            found.append(described(source, mutant))
    return found, total


def described(source: str, mutant: str) -> Mutant:
    """Returns a mutant with the place and the lines of its change."""
    old, new = source.splitlines(), mutant.splitlines()
    changes = [c for c in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if c[0] != "equal"]
    first, last = changes[0][1], changes[-1][2]
    before, after = old[first:last], new[changes[0][3] : changes[-1][4]]
    texts = (" ".join(line.strip() for line in lines) for lines in (before, after))
    return Mutant(first + 1, _definition(source, first + 1), *texts, source=mutant)


def mutations(source: str) -> Iterator[tuple[Place, Change]]:
    """Yields the place of each of Cosmic Ray's mutations, and a function that returns the source with it."""
    from cosmic_ray import plugins
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code

    nodes = list(ast_nodes(get_ast(source)))
    for name in plugins.operator_names():
        kind = plugins.get_operator(name)
        if kind.arguments():  # these need names of variables
            continue
        operator = kind()
        positions = (start for node in nodes for start, _ in operator.mutation_positions(node))
        for occurrence, start in enumerate(positions):
            yield start, partial(mutate_code, source, operator, occurrence)


def _program(source: str) -> str | None:
    """Returns the syntax tree of source as text, or None if it is no Python."""
    try:
        return ast.dump(ast.parse(source))
    except SyntaxError:
        return None


def _annotations(source: str) -> list[tuple[Place, Place]]:
    """Returns the places, from and to, of the annotations in source."""
    found: list[ast.expr | None] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AnnAssign | ast.arg):
            found.append(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(node.returns)
    return [
        ((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0))
        for node in found
        if node is not None
    ]


def _definition(source: str, line: int) -> str:
    """Returns the qualified name of the function or class that contains a line."""
    names: list[str] = []
    body = ast.parse(source).body
    while True:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                if first <= line <= (node.end_lineno or 0):
                    names.append(node.name)
                    body = node.body
                    break
        else:
            return ".".join(names) or "module"
