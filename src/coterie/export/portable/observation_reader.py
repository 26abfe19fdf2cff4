"""Observations from outside, as an environment returns them or converted, as arrays by sensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from coterie.core.observations import Entry, Mismatch, encoded_size, gray, is_image_entry, resized, stacked, writer
from coterie.export.portable.checked_numbers import axes_of, checked_numbers
from coterie.export.portable.policy_files import PolicyError


class ObservationReader:
    """Reads observations of the agents of a role.

    An observation has the form of the environment's own space, or is an array per sensor as the policy reads it, such
    as the one-hot vector of a discrete value, or stacked frames. Sensors may be nested, or named `outer.inner`. Where
    an array could be both, it is taken as the environment's, and changed as the wrappers of the run do.

    Args:
        role: Description of the role in `policy.json`.

    Attributes:
        agents: Names of the role's agents.
        sensors: Descriptions of the sensors by name; that of a single sensor has the empty name.
        stacks: Shapes of the sensors whose frames are stacked.
        keys: Names of the parts that an observation of several sensors has at its top; empty for a single sensor.
    """

    def __init__(self, role: Entry):
        self.agents: list[str] = role["agents"]
        self.sensors: dict[str, Entry] = role["sensors"] or {"": role}
        stacked_sensors = (name for name, sensor in self.sensors.items() if sensor.get("frame_stack", 1) > 1)
        self.stacks = {name: tuple(self.sensors[name]["shape"]) for name in stacked_sensors}
        self._tree: dict[str, Any] = {}
        for name, sensor in role["sensors"].items() if role["sensors"] else ():
            *outer, last = map(str, sensor.get("keys") or name.split("."))  # exports before version 0.3 have no keys
            place = self._tree
            for key in outer:
                place = place.setdefault(key, {})
            place[last] = name
        self.keys = {*self._tree, *self.sensors} if self._tree else set()

    def read(self, value: Any, what: str, before: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """Returns the arrays of one agent by sensor, of type float32.

        Args:
            value: The observation.
            what: What it is, for messages, such as `obs of 'agent_0'`.
            before: Its arrays of `stacks` in the step before; None in its first step.

        Raises:
            PolicyError: For missing and unknown sensors, wrong shapes, and values that are not in the space.
        """
        parts, before = self._parts(value, what), before or {}
        return {
            name: _read(sensor, parts[name], before.get(name), _sensor_of(what, name))
            for name, sensor in self.sensors.items()
        }

    def split_agents(self, value: Any, what: str) -> list[Any]:
        """Returns the observation of each agent of a role, which are stacked along the first axis.

        Raises:
            PolicyError: For missing and unknown sensors, and another number of agents.
        """
        stacked, agents = self._parts(value, what), len(self.agents)
        for name in self.sensors:
            part, of = stacked[name], _sensor_of(what, name)
            if not axes_of(part):
                raise PolicyError(f"{of}: of type {type(part).__name__}, expected {agents} agents")
            if len(part) != agents:
                raise PolicyError(f"{of} has {len(part)} agents, expected {agents}")
        rows = [{name: part[i] for name, part in stacked.items()} for i in range(agents)]
        return rows if self._tree else [row[""] for row in rows]

    def has_agents(self, value: Any) -> bool:
        """True if the arrays of an observation have an axis of agents, and cannot be those of one agent."""
        try:
            parts = self._parts(value, "")
        except PolicyError:
            return False
        return all(_is_stacked(sensor, parts[name], len(self.agents)) for name, sensor in self.sensors.items())

    def _parts(self, value: Any, what: str) -> dict[str, Any]:
        """The parts of an observation by sensor."""
        if not self._tree:
            if isinstance(value, Mapping):
                expected = _form(self.sensors[""].get("space") or {"kind": "box", **self.sensors[""]})
                raise PolicyError(f"{what} is a dict with {_listed(value)}, expected {expected}")
            return {"": value}
        found: dict[str, Any] = {}
        self._collect(value, self._tree, found, what)
        missing = [name for name in self.sensors if name not in found]
        if missing:
            raise PolicyError(f"{what} lacks the sensor '{missing[0]}'. {self._all()}")
        return found

    def _collect(self, value: Any, tree: dict[str, Any], found: dict[str, Any], what: str) -> None:
        """Adds the parts of an observation to `found`."""
        is_sequence = isinstance(value, (list, tuple)) and set(tree) == {str(i) for i in range(len(value))}
        if not isinstance(value, Mapping) and not is_sequence:
            missing = next(name for name in self.sensors if name not in found)
            raise PolicyError(f"{what} lacks the sensor '{missing}': it is of type {_kind(value)}. {self._all()}")
        for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
            name = str(key)
            place = tree.get(name, name if tree is self._tree and name in self.sensors else None)
            if place is None:
                raise PolicyError(f"{what} has no sensor '{name}'. {self._all()}")
            if isinstance(place, dict):
                self._collect(part, place, found, what)
            else:
                found[place] = part

    def _all(self) -> str:
        return f"The sensors are {_listed(self.sensors)}"


def _read(sensor: Entry, value: Any, before: np.ndarray | None, what: str) -> np.ndarray:
    """One sensor as an array of its shape."""
    shape, dtype, booleans = tuple(sensor["shape"]), sensor["dtype"], sensor.get("booleans", False)
    space = sensor.get("space") or {"kind": "box", "shape": shape, "dtype": dtype}
    is_encoded = _shape(value) == shape
    if not is_encoded or _is_native(space, value):
        try:
            array = _encoded(space, value, what, booleans)
        except Mismatch as error:
            if not is_encoded or space["kind"] == "multi_binary":
                also = "" if space["kind"] == "multi_binary" else f", or an array of shape {list(shape)}"
                raise PolicyError(f"{what}: {error.shown}, expected {error.expected}{also}") from None
        else:
            return _wrapped(sensor, space, array, before).reshape(shape)
    return checked_numbers(value, shape, what, dtype=dtype, booleans=booleans)


def _wrapped(sensor: Entry, space: Entry, array: np.ndarray, before: np.ndarray | None) -> np.ndarray:
    """An encoded observation as the wrappers of the run's environment change it."""
    if is_image_entry(space):
        height, width, *channels = space["shape"]
        array = array.reshape(height, width, *(channels or [1]))
    if sensor.get("channels_first"):
        array = np.moveaxis(array, 0, -1)
    if sensor.get("grayscale") and array.shape[-1] == 3:
        array = gray(array)
    if sensor.get("resize"):
        array = resized(array, tuple(sensor["resize"]))
    frames = sensor.get("frame_stack", 1)
    return array.astype(np.float32) if frames == 1 else stacked(array.astype(np.float32), before, frames)


def _encoded(space: Entry, value: Any, what: str, booleans: bool) -> np.ndarray:
    """An observation of an environment's space as an array of one axis. Mismatch if it is not in the space."""
    kind, found = space["kind"], _shape(value)
    if kind == "tuple":
        parts = space["parts"]
        if not _is_native(space, value):
            raise Mismatch(_kind(value), _form(space))
        encoded = []
        for i, (part, one) in enumerate(zip(parts, value, strict=True)):
            place = f"{what}, part {i}"
            try:
                encoded.append(_encoded(part, one, place, booleans))
            except Mismatch as error:
                raise PolicyError(f"{place}: {error.shown}, expected {error.expected}") from None
        return np.concatenate(encoded)
    if kind == "box":
        shape = found if found in ((), (1,)) and encoded_size(space) == 1 else tuple(space["shape"])
        dtype = "uint8" if is_image_entry(space) else "float32"
        booleans = booleans or space["dtype"] == "bool"
        return checked_numbers(value, shape, what, dtype=dtype, booleans=booleans).ravel()
    array = np.zeros(encoded_size(space), np.float32)
    if found is not None and _is_native(space, value):
        checked_numbers(value, found, what, booleans=booleans or kind == "multi_binary")
        writer(space)(array, np.asarray(value))
        return array
    shown = f"shape {list(found)}" if found is not None else _kind(value)
    raise Mismatch(shown, _form(space))


def _form(space: Entry) -> str:
    """Observations of a space in words."""
    if space["kind"] == "tuple":
        return f"a tuple of {len(space['parts'])} parts"
    if space["kind"] == "discrete":
        return f"an integer from {space['start']} to {space['start'] + space['n'] - 1}"
    return f"{'numbers' if space['kind'] == 'box' else 'integers'} of shape {list(space['shape'])}"


def _is_native(space: Entry, value: Any) -> bool:
    """True if the shape of an array, or the number of parts, is that of an environment's space."""
    if space["kind"] == "tuple":
        return axes_of(value) > 0 and len(value) == len(space["parts"])
    return _shape(value) in (((), (1,)) if space["kind"] == "discrete" else (tuple(space["shape"]),))


def _is_stacked(sensor: Entry, value: Any, agents: int) -> bool:
    """True if an array has an axis of agents, and has not the shape of one agent's observation."""
    found, shape = _shape(value), tuple(sensor["shape"])
    space = sensor.get("space") or {"kind": "box", "shape": shape}
    if found == (agents, *shape):
        return True
    if found == shape or _is_native(space, value) or not axes_of(value) or len(value) != agents:
        return False
    return _is_native(space, value[0])


def _shape(value: Any) -> tuple[int, ...] | None:
    """Shape of an array or of nested lists; None for lists of several lengths."""
    try:
        return tuple(np.shape(value))
    except (TypeError, ValueError, RuntimeError):
        return None


def _sensor_of(what: str, name: str) -> str:
    return f"{what}, sensor '{name}'" if name else what


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"{name} of length {len(value)}" if isinstance(value, (list, tuple)) else name


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "no keys"
