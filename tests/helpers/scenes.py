"""Scenes of the simulated Unity build: small worlds that behave like Unity's."""

from __future__ import annotations

import io
import os
import sys
import time
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

EQUIVARIANT, PLAIN = 2, 1


@dataclass
class Sensor:
    """One sensor. compressed: images are sent as PNG; first: channels come first, as from version 3 on."""

    name: str
    shape: tuple[int, ...]
    compressed: bool = False
    first: bool = False

    @property
    def properties(self) -> list[int]:
        if len(self.shape) < 3:
            return [PLAIN] * len(self.shape)
        return [PLAIN, EQUIVARIANT, EQUIVARIANT] if self.first else [EQUIVARIANT, EQUIVARIANT, PLAIN]

    def png(self, observations: np.ndarray) -> bytes:
        image = observations.transpose(1, 2, 0) if self.first else observations
        content = io.BytesIO()
        Image.fromarray(np.rint(image * 255).astype(np.uint8)).save(content, "PNG")
        return content.getvalue()


@dataclass
class BehaviorSpec:
    """Sensors and actions of a behavior."""

    sensors: list[Sensor]
    continuous: int = 0
    branches: tuple[int, ...] = ()


@dataclass
class Info:
    """One agent in a frame."""

    behavior: str
    id: int
    observations: list[np.ndarray]
    reward: float = 0.0
    done: bool = False
    interrupted: bool = False
    group: int = 0
    group_reward: float = 0.0
    disallowed: list[bool] | None = None


@dataclass
class Body:
    """An agent of a scene."""

    id: int
    at: np.ndarray = field(default_factory=lambda: np.zeros(2))
    age: int = 0


class Scene:
    """settings: seed and values of side channels; once: a file that exists if the failure has happened."""

    behaviors: dict[str, BehaviorSpec]

    def __init__(self, settings: dict[str, float], once: str | None):
        self.settings, self.once = settings, once
        self.random = np.random.default_rng(int(settings["seed"]))
        self.last_id = -1
        self.begin()

    def begin(self) -> None:
        """Sets up the scene."""

    def number(self) -> int:
        """Returns an unused agent ID."""
        self.last_id += 1
        return self.last_id

    def get(self, name: str, default: float) -> float:
        return self.settings.get(name, default)

    def body(self) -> Body:
        return Body(self.number(), self.random.uniform(-0.5, 0.5, 2))


class Balance(Scene):
    """One agent under random forces. It ends outside of a square, and is interrupted after `limit` steps."""

    behaviors = {"Balance?team=0": BehaviorSpec([Sensor("Ball", (2,)), Sensor("Age", (1,))], continuous=2)}  # noqa: RUF012

    def reset(self) -> list[Info]:
        self.agent = self.body()
        return [self.info(self.agent)]

    def info(self, body: Body, **more) -> Info:
        age = np.array([body.age / 10])
        return Info("Balance?team=0", body.id, [body.at, age], **more)

    def step(self, done: dict) -> list[Info]:
        body = self.agent
        numbers, choices = done["Balance?team=0", body.id]
        assert len(numbers) == 2
        assert not choices
        body.at = body.at + 0.3 * np.array(numbers) + self.random.uniform(-0.1, 0.1, 2)
        body.age += 1
        fell, at_limit = bool((abs(body.at) > 1).any()), body.age >= self.get("limit", 12)
        reward = 1 - float(abs(body.at).max())
        if not (fell or at_limit):
            return [self.info(body, reward=reward)]
        sent = [self.info(body, reward=reward, done=True, interrupted=not fell)]
        self.agent = self.body()
        return [*sent, self.info(self.agent)]  # the next agent requests a decision in the same frame


class Bandit(Scene):
    """One agent observes which of three choices is rewarded; it ends after eight steps."""

    behaviors = {"Bandit": BehaviorSpec([Sensor("Cue", (3,))], branches=(3,))}  # noqa: RUF012

    def cue(self) -> list[np.ndarray]:
        self.right = int(self.random.integers(3))
        return [np.eye(3)[self.right]]

    def reset(self) -> list[Info]:
        self.agent = Body(self.number())
        return [Info("Bandit", self.agent.id, self.cue())]

    def step(self, done: dict) -> list[Info]:
        body = self.agent
        _, (choice,) = done["Bandit", body.id]
        reward = float(choice == self.right)
        body.age += 1
        if body.age < 8:
            return [Info("Bandit", body.id, self.cue(), reward=reward)]
        sent = [Info("Bandit", body.id, self.cue(), reward=reward, done=True)]
        return sent + self.reset()


class Areas(Scene):
    """`areas` independent agents: agent k gets reward k, ends at its own age and is replaced.

    With `interrupts`, agents of odd index are interrupted instead. An end is sent in a frame of its own, between
    decisions, as Unity does where an episode ends in mid-period.
    """

    behaviors = {"Walker?team=0": BehaviorSpec([Sensor("Body", (3,))], continuous=1)}  # noqa: RUF012

    def reset(self) -> list[Info]:
        self.bodies = [self.body() for _ in range(int(self.get("agents", 4)))]
        self.waiting = None
        return [self.info(k) for k in range(len(self.bodies))]

    def info(self, k: int, **more) -> Info:
        body = self.bodies[k]
        return Info("Walker?team=0", body.id, [np.array([k, body.age, body.at[0]])], **more)

    def step(self, done: dict) -> list[Info]:
        if self.waiting is not None:
            sent, self.waiting = self.waiting, None
            assert not done
            return sent
        ends, continuing = [], []
        for k, body in enumerate(self.bodies):
            body.age += 1
            body.at = body.at + done["Walker?team=0", body.id][0][0] * 0.1
            if body.age >= 4 + 3 * k:
                interrupted = bool(k % 2 and self.get("interrupts", 0))
                ends.append(self.info(k, reward=k, done=True, interrupted=interrupted))
                self.bodies[k] = self.body()
                continuing.append(self.info(k))
            else:
                continuing.append(self.info(k, reward=k))
        if not ends:
            return continuing
        self.waiting = continuing
        return ends


class Group(Scene):
    """Three agents of one group, which leave one by one.

    The group gets reward 1 per step, and 10 when all have left. Those left after `limit` steps are interrupted.
    """

    behaviors = {"Team?team=0": BehaviorSpec([Sensor("Body", (3,))], branches=(2, 3))}  # noqa: RUF012

    def reset(self) -> list[Info]:
        self.bodies, self.time = [Body(self.number()) for _ in range(3)], 0
        return [self.info(k) for k in range(3)]

    def info(self, k: int, **more) -> Info:
        observations = [np.array([k, self.time, len(self.bodies)])]
        return Info("Team?team=0", self.bodies[k].id, observations, group=1, **more)

    def step(self, done: dict) -> list[Info]:
        self.time += 1
        group_reward = 1.0
        leaving, remaining = [], []
        for k, body in enumerate(self.bodies):
            choices = done["Team?team=0", body.id][1]
            assert len(choices) == 2
            leaves = self.time >= 3 and choices[0] == 1
            remaining += [] if leaves else [body]
            leaving.append((k, leaves))
        ended, at_limit = not remaining, self.time >= self.get("limit", 15)
        group_reward += 10.0 * ended
        infos = [
            self.info(
                k,
                group_reward=group_reward,
                done=leaves or at_limit,
                interrupted=at_limit and not ended,
                reward=0.5 * leaves,
            )
            for k, leaves in leaving
        ]
        self.bodies = remaining
        return infos + self.reset() if ended or at_limit else infos


class Soccer(Scene):
    """Two teams of a striker and a goalie. The first team scores after a random time, which ends the episode."""

    behaviors = {  # noqa: RUF012
        f"{name}?team={team}": BehaviorSpec([Sensor("Ball", (2,)), Sensor("Rays", (2, 2))], branches=(3,))
        for team in (0, 1)
        for name in ("Striker", "Goalie")
    }

    def reset(self) -> list[Info]:
        self.ids = {name: self.number() for name in self.behaviors}
        self.left = int(self.random.integers(3, 7))
        return self.infos()

    def infos(self, done: bool = False, rewards: tuple[float, float] = (0.0, 0.0)) -> list[Info]:
        return [
            Info(name, number, [np.array([self.left, team]), np.full((2, 2), number)], done=done, group=1 + team,
                 group_reward=rewards[team], reward=0.25)
            for name, number in self.ids.items()
            for team in (int(name[-1]),)
        ]  # fmt: skip

    def step(self, done: dict) -> list[Info]:
        self.left -= 1
        if self.left:
            return self.infos()
        return self.infos(True, (1.0, -1.0)) + self.reset()


class Hybrid(Scene):
    """One agent with two continuous actions and two branches; a disallowed choice ends the build with code 5."""

    behaviors = {"Hybrid": BehaviorSpec([Sensor("Time", (1,))], continuous=2, branches=(3, 2))}  # noqa: RUF012

    def info(self, **more) -> Info:
        disallowed = np.zeros(5, bool)
        disallowed[[self.agent.age % 3, 3 + self.agent.age % 2]] = True
        self.disallowed = disallowed
        return Info("Hybrid", self.agent.id, [np.array([self.agent.age])], disallowed=disallowed.tolist(), **more)

    def reset(self) -> list[Info]:
        self.agent = Body(self.number())
        return [self.info()]

    def step(self, done: dict) -> list[Info]:
        numbers, (first, second) = done["Hybrid", self.agent.id]
        if self.disallowed[first] or self.disallowed[3 + second]:
            sys.exit(5)
        self.agent.age += 1
        reward = float(numbers[0]) + 10 * first + 100 * second
        if self.agent.age < 6:
            return [self.info(reward=reward)]
        return [self.info(reward=reward, done=True), *self.reset()]


class Images(Scene):
    """One agent with a camera as PNG, another one uncompressed, and a vector. `first`: channels come first."""

    def begin(self) -> None:
        first = bool(self.get("first", 0))
        shapes = ((3, 12, 16), (1, 12, 14)) if first else ((12, 16, 3), (12, 14, 1))
        self.behaviors = {
            "Eyes": BehaviorSpec(
                [
                    Sensor("Camera", shapes[0], compressed=True, first=first),
                    Sensor("Depth Map", shapes[1], first=first),
                    Sensor("Numbers", (2,)),
                ],
                branches=(2,),
            )
        }
        self.first = first

    def info(self, **more) -> Info:
        camera = np.arange(576).reshape(12, 16, 3) % 256 / 255
        depth = np.full((12, 14, 1), self.agent.age / 10 * self.get("bright", 1))
        if self.first:
            camera, depth = camera.transpose(2, 0, 1), depth.transpose(2, 0, 1)
        return Info("Eyes", self.agent.id, [camera, depth, np.array([self.agent.age, -1])], **more)

    def reset(self) -> list[Info]:
        self.agent = Body(self.number())
        return [self.info()]

    def step(self, done: dict) -> list[Info]:
        self.agent.age += 1
        if self.agent.age < 5:
            return [self.info(reward=1)]
        return [self.info(reward=1, done=True), *self.reset()]


class Periods(Scene):
    """A fast agent that requests a decision every frame, a slow one every third. Both get reward 1 per frame.

    Each observes its last action, and how often it has been repeated.
    """

    behaviors = {  # noqa: RUF012
        "Fast": BehaviorSpec([Sensor("Did", (2,))], continuous=1),
        "Slow": BehaviorSpec([Sensor("Did", (2,))], continuous=1),
    }

    def reset(self) -> list[Info]:
        self.ids = {name: self.number() for name in self.behaviors}
        self.time, self.did, self.slow_reward = 0, dict.fromkeys(self.behaviors, (0.0, 0)), 0.0
        return [Info(name, number, [np.zeros(2)]) for name, number in self.ids.items()]

    def step(self, done: dict) -> list[Info]:
        self.time += 1
        self.slow_reward += 1
        for (name, _), (numbers, _) in done.items():
            last, times = self.did[name]
            self.did[name] = (numbers[0], times + 1 if numbers[0] == last else 1)
        slow = self.time % 3 == 0
        ended = self.time >= 12
        sent = [Info("Fast", self.ids["Fast"], [np.array(self.did["Fast"])], reward=1, done=ended)]
        if slow:
            sent.append(
                Info("Slow", self.ids["Slow"], [np.array(self.did["Slow"])], reward=self.slow_reward, done=ended)
            )
            self.slow_reward = 0.0
        return sent + self.reset() if ended else sent


class Late(Scene):
    """One agent. Another one appears after three steps and leaves after three more, repeatedly."""

    behaviors = {"Agent": BehaviorSpec([Sensor("Self", (2,))], continuous=1)}  # noqa: RUF012

    def reset(self) -> list[Info]:
        self.first, self.guest, self.time = self.number(), None, 0
        return [Info("Agent", self.first, [np.array([self.first, 0])])]

    def step(self, done: dict) -> list[Info]:
        self.time += 1
        ended = self.time >= 14
        sent = [Info("Agent", self.first, [np.array([self.first, self.time])], reward=1, done=ended)]
        if self.guest is not None:
            leaves = self.time % 6 == 0 or ended
            sent.append(Info("Agent", self.guest, [np.array([self.guest, self.time])], reward=7, done=leaves))
            self.guest = None if leaves else self.guest
        elif self.time % 6 == 3 and not ended:
            self.guest = self.number()
            sent.append(Info("Agent", self.guest, [np.array([self.guest, self.time])], reward=3))
        return sent + self.reset() if ended else sent


class Echo(Scene):
    """One agent that observes the values of the side channels and of the start."""

    NAMES = ("time_scale", "gravity", "seed", "areas", "port", "no_graphics")
    behaviors = {"Echo": BehaviorSpec([Sensor("Said", (len(NAMES),))], branches=(2,))}  # noqa: RUF012

    def reset(self) -> list[Info]:
        self.agent = Body(self.number())
        return [self.info()]

    def info(self, **more) -> Info:
        return Info("Echo", self.agent.id, [np.array([self.get(name, -1) for name in self.NAMES])], **more)

    def step(self, done: dict) -> list[Info]:
        self.agent.age += 1
        return [self.info()] if self.agent.age < 5 else [self.info(done=True), *self.reset()]


class Trouble(Bandit):
    """The bandit scene. At step `at` it crashes (code 7), or hangs with `hangs`."""

    behaviors = {"Bandit": BehaviorSpec([Sensor("Cue", (3,))], branches=(3,))}  # noqa: RUF012

    def begin(self) -> None:
        self.time = 0

    def step(self, done: dict) -> list[Info]:
        self.time += 1
        if self.time >= self.get("at", 5) and self.get("trouble", 1):
            if self.once is not None:
                open(self.once, "w").close()
            if self.get("hangs", 0):
                time.sleep(600)
            os._exit(7)
        return super().step(done)


SCENES = {
    "areas": Areas,
    "balance": Balance,
    "bandit": Bandit,
    "echo": Echo,
    "group": Group,
    "hybrid": Hybrid,
    "late": Late,
    "mute": Echo,
    "periods": Periods,
    "images": Images,
    "soccer": Soccer,
    "trouble": Trouble,
}
