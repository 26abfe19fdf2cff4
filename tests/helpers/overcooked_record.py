"""Records episodes of the package `overcooked_ai`, for tests without it.

The package cannot be installed next to Coterie: version 2.0.0 needs Python 3.10 and an old NumPy, and version 1.1.0 on
PyPI has no `old_dynamics`. Its rules in `overcooked_ai_py/mdp` run from the source of the repository:

    PYTHONPATH=overcooked_ai/src:src:tests/helpers python tests/helpers/overcooked_record.py
        writes tests/helpers/overcooked.npz
    PYTHONPATH=overcooked_ai/src:src:tests/helpers python tests/helpers/overcooked_record.py --episodes 1000 --steps 400
        compares this many episodes per layout and rule with Coterie, and writes nothing
"""

from __future__ import annotations

import argparse
import sys
import zlib
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch

from coterie.envs.worlds.overcooked import LAYOUTS
from coterie.envs.worlds.overcooked.kitchen import ACTIONS, INTERACT, POT
from coterie.envs.worlds.overcooked.overcooked import AGENTS, ROLE
from coterie.envs.worlds.overcooked.scripts import cook
from overcookedplay import COOK_TIMES, FILE, Episodes, compare, state_of, world_of

REVISION = "overcooked_ai 2.0.0, revision 739950a"
EPISODES, STEPS = 5, 100
NAMES = ("nothing", "onion", "dish", "soup")


class Kitchen:
    """A kitchen of the package, and its states as numbers."""

    def __init__(self, layout: str, old_dynamics: bool, rng: np.random.Generator):
        from overcooked_ai_py.mdp.actions import Action, Direction
        from overcooked_ai_py.mdp.overcooked_mdp import OvercookedGridworld

        settings = {"old_dynamics": old_dynamics, "cook_time": COOK_TIMES[old_dynamics]}
        self.mdp: Any = OvercookedGridworld.from_layout_name(layout, **settings)
        self.actions, self.directions, self.rng = Action.INDEX_TO_ACTION, Direction.INDEX_TO_DIRECTION, rng
        self.width, self.height = self.mdp.shape
        self.floor = self.mdp.get_valid_player_positions()

    def random_start(self) -> Any:
        """A state with agents, items and soups at random places."""
        from overcooked_ai_py.mdp.overcooked_mdp import OvercookedState

        rng, mdp = self.rng, self.mdp
        places = [self.floor[i] for i in rng.choice(len(self.floor), 2, replace=False)]
        facing = [self.directions[i] for i in rng.integers(4, size=2)]
        between = [(x, y) for x, y in mdp.get_counter_locations() if {(x - 1, y), (x + 1, y)} <= set(self.floor)]
        if between and rng.random() < 0.3:  # on both sides of a counter
            x, y = between[rng.integers(len(between))]
            places, facing = [(x - 1, y), (x + 1, y)], [self.directions[2], self.directions[3]]
        players = [
            {"position": place, "orientation": way, "held_object": None if rng.random() < 0.4 else self._item(place)}
            for place, way in zip(places, facing, strict=True)
        ]
        objects = [self._item(place) for place in mdp.get_counter_locations() if rng.random() < 0.1]
        for place in mdp.get_pot_locations():
            onions = int(rng.integers(4))
            lit = onions == 3 if mdp.old_dynamics else onions > 0 and rng.random() < 0.5
            if onions:
                objects.append(
                    self._soup(place, onions, int(rng.integers(COOK_TIMES[mdp.old_dynamics])) if lit else -1)
                )
        orders = mdp.start_all_orders
        return OvercookedState.from_dict({"players": players, "objects": objects, "all_orders": orders})

    def _item(self, place: Any) -> dict[str, Any]:
        name = NAMES[self.rng.integers(1, 4)]
        if name == "soup":
            cook_time = COOK_TIMES[self.mdp.old_dynamics]
            return self._soup(place, int(self.rng.integers(3 if self.mdp.old_dynamics else 1, 4)), cook_time)
        return {"name": name, "position": place}

    @staticmethod
    def _soup(place: Any, onions: int, tick: int) -> dict[str, Any]:
        return {
            "name": "soup",
            "position": place,
            "_ingredients": [{"name": "onion", "position": place}] * onions,
            "cooking_tick": tick,
        }

    def numbers(self, state: Any) -> list[int]:
        """The state in the order of `overcookedplay.FIELDS`."""
        cells = [y * self.width + x for x, y in state.player_positions]
        facing = [self.directions.index(way) for way in state.player_orientations]
        held = [_code(player.held_object) for player in state.players]
        places = [(x, y) for y in range(self.height) for x in range(self.width)]
        items = [_code(state.objects.get(place)) for place in places]
        pots = sorted(self.mdp.get_pot_locations(), key=places.index)
        ticks = [state.objects[pot]._cooking_tick + 1 if pot in state.objects else 0 for pot in pots]
        return [*cells, *facing, *held, *items, *ticks]

    def digest(self, state: Any, horizon: int) -> int:
        """Checksum of the observations of both agents, rows first."""
        seen = self.mdp.lossless_state_encoding(state, horizon)
        return zlib.crc32(np.stack(seen).transpose(0, 2, 1, 3).astype(np.uint8).tobytes())


def _code(item: Any) -> int:
    if item is None:
        return 0
    return 2 + len(item.ingredients) if item.name == "soup" else NAMES.index(item.name)


class Cooks:
    """Actions of the scripted cooks, some of which are random."""

    def __init__(self, layout: str, old_dynamics: bool, episodes: int, steps: int, rng: np.random.Generator):
        self.world = world_of(layout, old_dynamics, steps)
        env = SimpleNamespace(name=f"overcooked/{layout}", params=self.world.config)
        self._script, self._rng = cook(cast(Any, None), cast(Any, env)), rng
        self._share = np.resize([0.1, 0.3, 0.5, 0.2, 1.0], episodes)  # of random actions, by episode

    def act(self, numbers: np.ndarray, step: int) -> np.ndarray:
        """Actions [E, 2] in the states [E, K]."""
        state = state_of(torch.from_numpy(numbers), self.world) | {"time": torch.full((len(numbers),), step)}
        chosen = self._script(cast(Any, SimpleNamespace(obs=self.world.observe(state).obs)))[ROLE].discrete
        assert chosen is not None
        shape = (len(numbers), AGENTS)
        random, swapped = self._rng.integers(len(ACTIONS), size=shape), self._rng.random(shape) < self._share[:, None]
        actions = np.where(swapped, random, chosen.squeeze(-1).numpy())
        actions = np.where(faces_pot(state, self.world) & (self._rng.random(shape) < 0.2), INTERACT, actions)
        return np.where(
            (can_hand_over(state, self.world) & (self._rng.random(len(numbers)) < 0.5))[:, None], 5, actions
        )


def faces_pot(state: dict[str, torch.Tensor], world: Any) -> np.ndarray:
    """True for agents that face a pot, [B, 2] bool."""
    room = world.tables(torch.device("cpu"))
    return (room.kind[room.faced[state["cell"] * 4 + state["direction"]]] == POT).numpy()


def can_hand_over(state: dict[str, torch.Tensor], world: Any) -> np.ndarray:
    """True where both agents face one counter and only the first one holds an item, [B] bool."""
    room = world.tables(torch.device("cpu"))
    faced = room.faced[state["cell"] * 4 + state["direction"]]
    holds = (state["held"][:, 0] > 0) & (state["held"][:, 1] == 0)
    return ((faced[:, 0] == faced[:, 1]) & (room.counter[faced[:, 0]] > 0) & holds).numpy()


def play(layout: str, old_dynamics: bool, episodes: int, steps: int, seed: int) -> Episodes:
    """Plays episodes of the package, of which every second one starts in a random state."""
    rng = np.random.default_rng(seed)
    kitchen, cooks = Kitchen(layout, old_dynamics, rng), Cooks(layout, old_dynamics, episodes, steps, rng)
    current = [kitchen.random_start() if i % 2 else kitchen.mdp.get_standard_start_state() for i in range(episodes)]
    states, digests, actions, sparse, shaped = [], [], [], [], []
    for step in range(steps + 1):
        states.append([kitchen.numbers(state) for state in current])
        digests.append([kitchen.digest(state, steps) for state in current])
        if step == steps:
            break
        actions.append(cooks.act(np.array(states[-1], np.uint8), step))
        moved = [
            kitchen.mdp.get_state_transition(state, [kitchen.actions[each] for each in chosen])
            for state, chosen in zip(current, actions[-1], strict=True)
        ]
        current = [state for state, _ in moved]
        sparse.append([info["sparse_reward_by_agent"] for _, info in moved])
        shaped.append([info["shaped_reward_by_agent"] for _, info in moved])
    numbers = [np.array(value, np.uint8).swapaxes(0, 1) for value in (states, actions, sparse, shaped)]
    return Episodes(*numbers, digests=np.array(digests, np.uint32).T)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, help="compare this many episodes of each layout and rule")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--layouts", nargs="*", default=list(LAYOUTS))
    parser.add_argument("--seed", type=int, default=2, help="with the default, every event occurs in the record")
    given = parser.parse_args()
    recorded: dict[str, Any] = {"revision": np.array(REVISION)}
    for layout in given.layouts:
        for old_dynamics in (True, False):
            episodes = play(layout, old_dynamics, given.episodes or EPISODES, given.steps, given.seed)
            events = compare(layout, old_dynamics, episodes)
            print(
                layout, "old dynamics" if old_dynamics else "new dynamics", episodes.actions.shape, events, flush=True
            )
            recorded |= {f"{layout}.{old_dynamics:d}.{name}": value for name, value in episodes._asdict().items()}
    if given.episodes is None:
        np.savez_compressed(FILE, **recorded)
    return 0


if __name__ == "__main__":
    sys.exit(main())
