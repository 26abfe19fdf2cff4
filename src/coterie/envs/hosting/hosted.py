"""A batch of copies of an outside environment, whoever steps them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from coterie.envs.hosting.board import Board
from coterie.envs.hosting.crew import Crew
from coterie.envs.hosting.instance import Instance, Layout
from coterie.envs.hosting.varied import Kind
from coterie.envs.parameters import Parameter, Varying
from coterie.envs.samplers import Sampler
from coterie.errors import EnvironmentFailedError, UserError
from coterie.types import Action, Row, Step, Tree


class Host(ABC):
    """Who steps the copies of a board. Actions are on the board when `send` is called, and what they brought when
    `receive` returns, which is called after every `send` and before anything else.
    """

    board: Board
    kind: Kind | None
    """Which environment it is, where its parameters may vary."""

    @abstractmethod
    def vary(self, samplers: Mapping[str, Sampler]) -> None:
        """Episodes that begin from now on draw these parameters. UserError for what the environment has not."""

    @abstractmethod
    def reset(self, seed: int | None) -> None:
        """A new episode in every copy; each has a seed of its own from `seed`."""

    @abstractmethod
    def send(self) -> None:
        """Begins a step of every copy, which may be over already when this returns."""

    @abstractmethod
    def receive(self) -> None:
        """Waits until it is over."""

    @abstractmethod
    def state_dict(self) -> list[dict[str, Any]]:
        """Of every copy what it needs to go on."""

    @abstractmethod
    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Takes up where `state_dict` was called."""

    @abstractmethod
    def render(self, copy: int) -> np.ndarray | None:
        """A picture of one copy as its library draws it; None if it draws none."""

    @abstractmethod
    def close(self) -> None:
        """Gives back what the copies hold. May be called twice."""


@final
class Alone(Host):
    """Steps all copies in this process; first: the number of the first of them in the whole environment; kind: as in
    Host.

    What a copy raises in a step or a reset is told as EnvironmentFailedError, a UserError as it is.
    """

    def __init__(
        self, make: Callable[[], Instance], layout: Layout, copies: int, first: int = 0, kind: Kind | None = None
    ):
        self.board, self.kind = Board(layout, copies), kind
        self._crew = Crew(make, self.board, 0, copies, first)

    def vary(self, samplers: Mapping[str, Sampler]) -> None:
        assert self.kind is not None
        self._crew.vary(self.kind, samplers)

    def reset(self, seed: int | None) -> None:
        with self._told("reset"):
            self._crew.reset(seed)

    def send(self) -> None:
        with self._told("a step"):
            self._crew.step()

    @contextmanager
    def _told(self, when: str) -> Iterator[None]:
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            raise EnvironmentFailedError.of(self.board.layout.spec.name, when, error) from error

    def receive(self) -> None:
        pass  # it was over when `send` returned

    def state_dict(self) -> list[dict[str, Any]]:
        return self._crew.state_dict()

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        self._crew.load_state_dict(states)

    def render(self, copy: int) -> np.ndarray | None:
        return self._crew.instances[copy].render()

    def close(self) -> None:
        self._crew.close()


@final
class HostedEnv(Varying):
    """The copies of a host, each with a seed of its own; rows and steps are copied off its board."""

    def __init__(self, host: Host, seed: int, device: torch.device | str):
        self._host = host
        self.spec, self.copies, self.device = host.board.layout.spec, host.board.copies, torch.device(device)
        self._seed: int | None = seed  # of the first reset
        n = self.spec.n
        self._all = torch.ones(self.copies, n, dtype=torch.bool, device=self.device)
        self._none = torch.zeros_like(self._all)
        self._all_copies, self._no_copy = self._all[:, 0], self._none[:, 0]
        self._no_group_reward = torch.zeros(self.copies, len(self.spec.groups), device=self.device)
        self._alive = np.zeros((self.copies, n), np.bool_)  # in the row before
        self._closed = np.zeros(self.copies, np.bool_)  # the row before was a closing one
        self._everyone = np.ones((self.copies, n), np.bool_)
        self._here = self.device.type == "cpu"

    def parameters(self) -> dict[str, Parameter]:
        return {} if self._host.kind is None else self._host.kind.parameters()

    def check_parameters(self, samplers: Mapping[str, Sampler]) -> None:
        if self._host.kind is None:
            raise UserError(f"{self.spec.name} was not made by its name, so that its parameters cannot vary")
        self._host.kind.check(self._host.board.layout, samplers)

    def vary(self, samplers: Mapping[str, Sampler]) -> None:
        if self._host.kind is None:
            self.check_parameters(samplers)
        self._host.vary(samplers)

    def reset(self, seed: int | None = None) -> Row:
        seed, self._seed = self._seed if seed is None else seed, None
        self._host.reset(seed)
        self._alive[...] = False
        self._closed[...] = True
        return self._row()

    def step(self, action: dict[str, Action]) -> tuple[Step, Row]:
        self.send(action)
        return self.receive()

    def send(self, action: dict[str, Action]) -> None:
        """Begins a step, which `receive` ends; workers step their copies meanwhile."""
        board = self._host.board
        for role, picks in board.discrete.items():
            np.copyto(picks, _numpy(action[role].discrete))
        for role, numbers in board.continuous.items():
            np.copyto(numbers, _numpy(action[role].continuous))
        np.copyto(self._closed, board.closing)
        if self.spec.mortal:
            np.copyto(self._alive, board.alive)
        self._host.send()

    def receive(self) -> tuple[Step, Row]:
        """What the step brought that was begun, and the next row."""
        self._host.receive()
        return self._step(), self._row()

    def _step(self) -> Step:
        board = self._host.board
        group_reward = self._tensor(board.group_reward) if self.spec.paid_by_group else self._no_group_reward
        metrics = {name: self._tensor(board.metrics[:, k]) for k, name in enumerate(self.spec.metrics)}
        lost = self._tensor(board.lost) if np.count_nonzero(board.lost) else None
        if not np.count_nonzero(board.flags):  # mostly; nothing new has to be built then
            nobody, no_copy = self._none, self._no_copy
            return Step(self._tensor(board.reward), group_reward, nobody, nobody, no_copy, no_copy, metrics, lost)
        return Step(
            reward=self._tensor(board.reward),
            group_reward=group_reward,
            terminated=self._tensor(board.terminated),
            truncated=self._tensor(board.truncated),
            episode_terminated=self._tensor(board.ended[:, 0]),
            episode_truncated=self._tensor(board.ended[:, 1]),
            metrics=metrics,
            lost=lost,
        )

    def _row(self) -> Row:
        board = self._host.board
        obs: dict[str, Tree] = {}
        for role, arrays in board.obs.items():
            seen = {name: self._tensor(x) for name, x in arrays.items()}
            obs[role] = seen.get("", seen)
        begins = self._closed | board.lost
        alive, first = self._all, self._none
        if self.spec.mortal:
            alive = self._tensor(board.alive)
            first = self._own(board.alive & (begins[:, None] | ~self._alive))
        elif np.count_nonzero(begins):
            first = self._own(begins[:, None] & self._everyone)
        acted = self._own(~board.closing) if np.count_nonzero(board.closing) else self._all_copies
        mask = {role: self._tensor(x) for role, x in board.mask.items()}
        state = {name: self._tensor(x) for name, x in board.state.items()}
        return Row(obs, mask, state, alive, first, acted)

    def _tensor(self, array: np.ndarray) -> Tensor:
        """A tensor of its own of what is on the board."""
        return self._own(array.copy())

    def _own(self, array: np.ndarray) -> Tensor:
        """The tensor of an array that nobody else has."""
        tensor = torch.from_numpy(array)
        return tensor if self._here else tensor.to(self.device)

    def state_dict(self) -> dict[str, Any]:
        if not self.spec.exact_resume:
            return {}
        begun = [] if self._seed is not None else self._host.state_dict()
        return {"seed": self._seed, "copies": begun, "alive": torch.from_numpy(self._host.board.alive.copy())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not self.spec.exact_resume:
            raise UserError(f"{self.spec.name} cannot save its state: begin new episodes with reset(seed)")
        self._seed = state["seed"]
        if self._seed is None:
            self._host.load_state_dict(state["copies"])
            self._host.board.alive[...] = state["alive"].cpu().numpy()

    def render(self, copy: int = 0, size: int = 480) -> np.ndarray:
        picture = self._host.render(copy)
        if not isinstance(picture, np.ndarray) or picture.ndim != 3:
            raise UserError(f"{self.spec.name} draws no pictures: it has no render mode rgb_array")
        scale = size / max(picture.shape[:2])
        height, width = (max(1, round(scale * side)) for side in picture.shape[:2])
        image = Image.fromarray(np.ascontiguousarray(picture, dtype=np.uint8))
        return np.asarray(image.resize((width, height), Image.Resampling.LANCZOS)).copy()

    def close(self) -> None:
        self._host.close()


def _numpy(component: Tensor | None) -> np.ndarray:
    assert component is not None
    return component.numpy() if component.is_cpu else component.cpu().numpy()
