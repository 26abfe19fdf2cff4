"""Acts in one environment, step by step."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from coterie.export.portable.checked_numbers import axes_of, checked_numbers
from coterie.export.portable.native_actions import native_action
from coterie.export.portable.network import split_components
from coterie.export.portable.observation_reader import ObservationReader
from coterie.export.portable.policy import Policy
from coterie.export.portable.policy_files import PolicyError


class Player:
    """Acts in one environment, step by step, and keeps the hidden states of recurrent policies.

    Args:
        path: Folder that `coterie export` wrote, or the folder of one of its teams.
        mode: `greedy`, `sample`, or `auto` for what the algorithm uses in evaluation.
        seed: Seed of sampled actions.

    Raises:
        PolicyError: If a file is missing, truncated or changed, or the folder holds teams of several runs.
    """

    def __init__(self, path: str | Path, *, mode: str = "auto", seed: int = 0):
        if mode not in ("auto", "greedy", "sample"):
            raise ValueError(f"mode='{mode}': expected auto, greedy or sample")
        folder = Path(path)
        teams = [folder]
        if not (folder / "policy.json").is_file():
            teams = sorted(x.parent for x in folder.glob("*/policy.json") if not x.parent.name.startswith("."))
        if not teams:
            raise PolicyError(f"{folder}: no policy.json here or in its folders. Pass what `coterie export` wrote.")
        self._mode = mode
        self.policies = [Policy(team) for team in teams]
        try:
            agents = [agent for policy in self.policies for agent in policy.agents]
            twice = next((agent for agent in agents if agents.count(agent) > 1), None)
            self._owner = {
                agent: (role, i) for p in self.policies for role in p.roles for i, agent in enumerate(role["agents"])
            }
            self._roles = {role["name"]: role for p in self.policies for role in p.roles}
            self._readers = {name: ObservationReader(role) for name, role in self._roles.items()}
            self.reset(seed)
        except (ValueError, LookupError, TypeError, AttributeError):
            raise PolicyError(f"{folder}: damaged, export again") from None
        if twice:
            raise PolicyError(f"{folder}: several teams have the agent '{twice}'. Export every run to its own folder.")

    def another(self, seed: int | None = None) -> Player:
        """Returns a player of the same policies with an episode and a random stream of its own; None: any seed."""
        other = copy.copy(self)
        other._rng = np.random.default_rng(seed)
        other.reset()
        return other

    def reset(self, seed: int | None = None) -> None:
        """Starts a new episode with zero hidden states; `seed` also restarts the random stream of sampled actions."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._frames: dict[str, dict[str, np.ndarray]] = {}
        self._hidden = [policy.initial_hidden_state(1) for policy in self.policies]
        self._alive = [np.zeros((1, len(policy.agents)), bool) for policy in self.policies]

    def hidden_state(self) -> dict[str, dict[str, np.ndarray]]:
        """Returns the hidden state after the last step by living agent and name [H]; {} for policies without one.

        Stacked frames belong to it, as `frames` or `frames.SENSOR`.
        """
        found: dict[str, dict[str, np.ndarray]] = {}
        for policy, hidden, alive in zip(self.policies, self._hidden, self._alive, strict=True):
            for i, agent in enumerate(policy.agents):
                if alive[0, i]:
                    state = {_frames_of(sensor): array for sensor, array in self._frames[agent].items()}
                    state |= {name: value[0, i] for name, value in hidden.items()}
                    found |= {agent: state} if state else {}
        return found

    def set_hidden_state(self, state: dict[str, dict[str, Any]]) -> None:
        """Continues from what `hidden_state` returned; agents without an entry begin with zeros.

        Raises:
            PolicyError: For unknown names and wrong shapes.
        """
        if not isinstance(state, dict):
            raise PolicyError("hidden_state: pass a dict by agent")
        self.reset()
        if unknown := sorted(str(name) for name in state.keys() - self._owner.keys()):
            raise PolicyError(f"hidden_state: no agent '{unknown[0]}'. There are {', '.join(self._owner)}")
        for policy, hidden, alive in zip(self.policies, self._hidden, self._alive, strict=True):
            for i, agent in enumerate(policy.agents):
                if agent in state:
                    alive[0, i] = True
                    place = f"hidden_state of '{agent}'"
                    for name, value in hidden.items():
                        part = _part(state[agent], name, f"{place} lacks")
                        value[0, i] = checked_numbers(part, value.shape[2:], f"{place}, '{name}'")
                    self._frames[agent] = {}
                    for sensor, shape in self._reader(agent).stacks.items():
                        part = _part(state[agent], _frames_of(sensor), f"{place} lacks")
                        self._frames[agent][sensor] = checked_numbers(part, shape, f"{place}, '{_frames_of(sensor)}'")

    def act(self, obs: Any, action_mask: Any = None) -> Any:
        """Returns actions for observations, in the same form.

        Args:
            obs: Observations as the environment returns them: {agent: observation}, where missing agents are dead, or
                that of a single agent. Also {role: array [n, ...]} with the agents of a role stacked, arrays as the
                policy reads them, such as one-hot vectors of discrete values, and {"observation": observation,
                "action_mask": array}.
            action_mask: Available choices in the same form, arrays [A]. Agents without one can choose everything.

        Returns:
            Per agent an action of the environment's space: an int, an array of ints, an array within the bounds, or a
            tuple or dict of these.

        Raises:
            PolicyError: For unknown names, wrong shapes, and values that are not numbers of the space.
        """
        names = {str(name): name for name in obs} if isinstance(obs, dict) else {}
        obs, action_mask = _named_by_text(obs), _named_by_text(action_mask)
        given_obs, given_masks = self._by_agent(obs, "obs"), self._by_agent(action_mask, "action_mask")
        arrays: dict[str, dict[str, np.ndarray]] = {}
        for agent, value in given_obs.items():
            reader = self._reader(agent)
            rest, mask = _split_mask(value, reader.keys)
            arrays[agent] = reader.read(rest, f"obs of '{agent}'", self._frames.get(agent))
            if mask is not None:
                place = f"action_mask of '{agent}'"
                given_masks.setdefault(agent, _flat_mask(mask, self._owner[agent][0], place))
        taken: dict[str, Any] = {}
        for i, policy in enumerate(self.policies):
            alive = np.array([[agent in arrays for agent in policy.agents]])
            first, self._alive[i] = alive & ~self._alive[i], alive
            if not alive.any():
                continue
            if policy.info.get("centralized") and "alive" not in policy.inputs and not alive.all():
                missing = next(agent for agent in policy.agents if agent not in arrays)
                raise PolicyError(
                    f"obs: {missing} is missing, and agents of its team act by what others observe. Pass the "
                    f"observations of all at once ({', '.join(policy.agents)})"
                )
            mode = policy.info["mode"] if self._mode == "auto" else self._mode
            noise = policy.draw_noise(self._rng if mode == "sample" else None, 1)
            stacked = {role["name"]: _stack(role, arrays) for role in policy.roles}
            masks = {role["name"]: _stack_masks(role, given_masks, given_obs) for role in policy.roles}
            actions, self._hidden[i] = policy.step(
                stacked, self._hidden[i], mode=mode, mask=masks, first=first, alive=alive, noise=noise
            )
            for role in policy.roles:
                for j, agent in enumerate(role["agents"]):
                    parts = {kind: list(array[0, j]) for kind, array in actions[role["name"]].items()}
                    taken[agent] = native_action(role["action"], parts)
        self._frames = {
            agent: {name: parts[name] for name in self._reader(agent).stacks} for agent, parts in arrays.items()
        }
        shaped = self._like(obs, taken)
        return {names[name]: action for name, action in shaped.items()} if self._named(obs) else shaped

    def _reader(self, agent: str) -> ObservationReader:
        return self._readers[self._owner[agent][0]["name"]]

    def _by_agent(self, given: Any, what: str) -> dict[str, Any]:
        if given is None:
            return {}
        if what == "action_mask":
            roles = self._roles | {agent: role for agent, (role, _) in self._owner.items()}
            if len(self._owner) == 1 and not (isinstance(given, dict) and roles.keys() & given.keys()):
                given = {next(iter(self._owner)): given}
            if isinstance(given, dict):
                given = {
                    name: _flat_mask(mask, roles[name], f"action_mask of '{name}'") if name in roles else mask
                    for name, mask in given.items()
                }
        if not self._named(given):
            if len(self._owner) != 1:
                raise PolicyError(f"{what}: pass a dict by agent ({', '.join(self._owner)})")
            return {next(iter(self._owner)): given}
        found: dict[str, Any] = {}
        for name, value in given.items():
            if self._is_role(name, value, what):
                agents, place = self._roles[name]["agents"], f"{what} of role '{name}'"
                if what == "obs":
                    value = self._readers[name].split_agents(value, place)
                elif axes_of(value) < 2 or len(value) != len(agents):
                    raise PolicyError(f"{place}: expected the masks of {len(agents)} agents")
                found.update(zip(agents, value, strict=True))
            elif name in self._owner:
                found[name] = value
            else:
                raise PolicyError(f"{what}: no agent or role '{name}'. There are {', '.join(self._owner)}")
        return found

    def _named(self, given: Any) -> bool:
        """True for a dict by agent or role; False for the observation of a single agent."""
        if not isinstance(given, dict):
            return False
        if len(self._owner) != 1 or next(iter(self._owner)) in given:
            return True
        keys = next(iter(self._readers.values())).keys
        return not (set(map(str, given)) & {"observation", "action_mask", *keys})

    def _is_role(self, name: str, value: Any, what: str) -> bool:
        if name not in self._roles:
            return False
        if name not in self._owner:
            return True
        if what == "action_mask":
            return axes_of(value) == 2
        return self._readers[name].has_agents(value)

    def _like(self, given: Any, taken: dict[str, Any]) -> Any:
        if not self._named(given):
            if not taken:
                raise PolicyError("obs: null. Pass arrays by agent or by role.")
            return next(iter(taken.values()))
        shaped: dict[str, Any] = {}
        for name, value in given.items():
            if self._is_role(name, value, "obs"):
                actions = [taken[agent] for agent in self._roles[name]["agents"]]
                shaped[name] = actions if isinstance(actions[0], tuple | dict) else np.stack(actions)
            else:
                shaped[name] = taken[name]
        return shaped


def _named_by_text(given: Any) -> Any:
    """A dict with the texts of its keys, as exports name agents and sensors."""
    return {str(name): value for name, value in given.items()} if isinstance(given, dict) else given


def _stack(role: dict[str, Any], given: dict[str, dict[str, np.ndarray]]) -> Any:
    """Observations of a role's agents [1, n, ...], by sensor if there are several; zeros for those that are dead."""

    def of_sensor(name: str, sensor: dict[str, Any]) -> np.ndarray:
        zeros = np.zeros(sensor["shape"], np.float32)
        rows = [given[agent][name] if agent in given else zeros for agent in role["agents"]]
        return np.stack(rows).astype(sensor["dtype"])[None]

    if role["sensors"]:
        return {name: of_sensor(name, sensor) for name, sensor in role["sensors"].items()}
    return of_sensor("", role)


def _frames_of(sensor: str) -> str:
    return f"frames.{sensor}" if sensor else "frames"


def _flat_mask(mask: Any, role: dict[str, Any], what: str) -> Any:
    """A mask with the structure of the action space as one array; others are returned unchanged."""
    if not isinstance(mask, (dict, tuple, list)):
        return mask
    size, array = sum(role["choices"]), _regular(mask)
    if array is not None and array.shape[-1:] == (size,):
        return mask
    leaves = [np.ravel(leaf) for leaf in _mask_leaves(mask, role["action"], what)]
    if not isinstance(mask, dict) and sum(leaf.size for leaf in leaves) != size:
        leaves = [np.ravel(leaf) for leaf in _mask_leaves(mask, {"kind": ""}, what)]
    return np.concatenate(leaves) if leaves else np.zeros(0, bool)


def _regular(mask: Any) -> Any:
    """A mask as an array; None for dicts, objects, and arrays of several lengths."""
    try:
        array = None if isinstance(mask, dict) else np.asarray(mask)
    except ValueError:
        return None
    return array if array is not None and array.dtype != object else None


def _mask_leaves(mask: Any, space: dict[str, Any], what: str) -> Iterator[Any]:
    """Yields the arrays of a mask. None allows everything, and parts without choices need no entry."""
    parts, size, array = space.get("parts", []), _choices(space), _regular(mask)
    if array is not None:
        yield array
    elif mask is None and size:
        yield np.ones(size, bool)
    elif isinstance(mask, dict):
        by_key = dict(zip(space["keys"], parts, strict=True)) if space["kind"] == "dict" else {}
        needed = [key for key, part in by_key.items() if _choices(part)]
        if not needed or not set(needed) <= mask.keys() <= by_key.keys():
            expected = f"the parts {needed}" if needed else "an array"
            raise PolicyError(f"{what} has the parts {list(mask)}, expected {expected}")
        for key in needed:
            yield from _mask_leaves(mask[key], by_key[key], what)
    elif isinstance(mask, (tuple, list)) or (isinstance(mask, np.ndarray) and mask.ndim):
        is_structured = space["kind"] == "tuple" and len(parts) == len(mask)
        for i, one in enumerate(mask):
            if not is_structured or _choices(parts[i]):
                yield from _mask_leaves(one, parts[i] if is_structured else {"kind": ""}, what)
    else:
        yield mask


def _choices(space: dict[str, Any]) -> int:
    """Length of a mask of an action space."""
    kind = space["kind"]
    if not kind:  # within a component
        return 0
    if kind in ("tuple", "dict"):
        return sum(_choices(part) for part in space["parts"])
    if kind == "discrete":
        return space["n"]
    return (
        sum(space["nvec"])
        if kind == "multi_discrete"
        else 2 * math.prod(space["shape"])
        if kind == "multi_binary"
        else 0
    )


def _split_mask(value: Any, keys: set[str]) -> tuple[Any, Any]:
    """An agent's observation and the mask within it, or None. `keys` are those of an observation without mask."""
    if not isinstance(value, dict):
        return value, None
    mask = None if "action_mask" in keys else value.get("action_mask")
    rest = value if mask is None else {name: part for name, part in value.items() if name != "action_mask"}
    if len(rest) == 1 and not set(map(str, rest)) & keys and (mask is not None or "observation" in rest):
        rest = next(iter(rest.values()))
    return rest, mask


def _part(value: Any, name: str, lacks: str) -> Any:
    try:
        return value[name]
    except (KeyError, TypeError, IndexError):
        raise PolicyError(f"{lacks} '{name}'") from None


def _stack_masks(role: dict[str, Any], given: dict[str, Any], obs: dict[str, Any]) -> np.ndarray:
    """Masks of a role's agents [1, n, sum A]."""
    shape, rows = (sum(role["choices"]),), []
    for agent in role["agents"]:
        mask = given.get(agent) if agent in obs else None
        row = np.ones(shape, bool) if mask is None else _as_mask(mask, shape, f"action_mask of '{agent}'")
        if not all(part.any() for part in split_components(row, role["choices"])):
            raise PolicyError(f"action_mask of '{agent}' leaves no choice: {row.astype(int).tolist()}")
        rows.append(row)
    return np.stack(rows)[None]


def _as_mask(value: Any, shape: tuple[int, ...], what: str) -> np.ndarray:
    mask = checked_numbers(value, shape, what, booleans=True)
    wrong = (mask != 0) & (mask != 1)
    if wrong.any():
        raise PolicyError(f"{what} holds {mask[wrong][0]:g}. Pass 1 for available actions and 0 for others.")
    return mask == 1
