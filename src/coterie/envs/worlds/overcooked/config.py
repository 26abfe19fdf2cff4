"""Settings of Overcooked."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class OvercookedConfig(BaseModel):
    """Settings of overcooked/*."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    layout: str | None = None
    """Drawing of another kitchen: `X` counter, `O` onions, `D` dishes, `P` pot, `S` serving window, `.` floor, `1` and
    `2` agents; rows separated by line breaks or `/`."""
    auto_cook: bool = True
    """Start cooking when the third onion is in the pot, the package's `old_dynamics`. Otherwise an agent with empty
    hands starts it by interacting, with one to three onions."""
    cook_time: int = Field(20, ge=1, le=1000)
    """Number of steps until a soup is ready."""
    delivery_reward: float = Field(20.0, ge=0, le=10**6)
    """Reward of the team for serving a soup of three onions."""
    shaping: float = Field(0.0, ge=0, le=100)
    """Factor on the following three rewards, which go to the agent itself."""
    pot_reward: float = Field(3.0, ge=0, le=10**6)
    """Shaped reward for putting an onion into a pot."""
    dish_reward: float = Field(3.0, ge=0, le=10**6)
    """Shaped reward for taking a dish from the dispenser when it is useful: no dish is on a counter, and agents hold
    fewer dishes than there are pots with a soup that is cooking, ready or not full."""
    soup_reward: float = Field(5.0, ge=0, le=10**6)
    """Shaped reward for taking a soup from a pot."""
    random_positions: bool = False
    """Start on two random cells of the floor instead of the marked ones."""
    random_objects: float = Field(0.0, ge=0, le=1)
    """Probability that a pot starts with onions, that these are cooking, and that an agent starts with an item."""
    observation_type: Literal["flattened", "image"] = "flattened"
    """26 layers of the kitchen, cell by cell as a vector, or the same numbers as an image [H, W, 26]. Images need at
    least five rows and columns."""
    episode_limit: int | None = Field(400, ge=1, le=10**9)
    """Maximum number of steps before truncation; None: no limit."""
    terminate_at_limit: bool = False
    """Treat the step limit as termination instead of truncation."""
