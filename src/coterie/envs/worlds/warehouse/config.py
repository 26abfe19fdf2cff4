"""Settings of the warehouse."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

RewardType = Literal["individual", "global", "two_stage"]
ObservationType = Literal["flattened", "image", "image_dict"]
ImageLayer = Literal["shelves", "requests", "agents", "agent_direction", "agent_load", "goals", "accessible"]


class WarehouseConfig(BaseModel):
    """Settings of warehouse/*. The names are those of the package `rware`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    agents: int = Field(2, ge=1, le=200)
    """Number of agents."""
    shelf_rows: int = Field(1, ge=1, le=32)
    """Number of rows of shelf blocks."""
    shelf_columns: int = Field(3, ge=1, le=63)
    """Number of columns of shelf blocks, an odd number."""
    column_height: int = Field(8, ge=1, le=64)
    """Height of a shelf block in cells."""
    layout: str | None = None
    """Drawing of the floor instead of shelf_rows, shelf_columns and column_height: `x` shelves, `.` highways, `g`
    goals; rows separated by line breaks or `/`."""
    request_queue_size: int | None = Field(None, ge=0, le=10_000)
    """Number of requested shelves; None: as many as agents, twice as many in `-easy`, half as many in `-hard`."""
    sensor_range: int = Field(1, ge=0, le=16)
    """Reach of the observed window around an agent in cells."""
    msg_bits: int = Field(0, ge=0, le=32)
    """Number of bits that each agent sends per step to the agents that see it."""
    reward_type: RewardType = "individual"
    """Reward of a delivery: 1 for the agent, 1 for all agents, or 0.5 for the agent and 0.5 when it returns the
    shelf."""
    max_steps: int | None = Field(500, ge=1, le=10**9)
    """Maximum number of steps before truncation; None: no limit."""
    max_inactivity_steps: int | None = Field(None, ge=1, le=10**9)
    """Number of steps without a delivery after which the episode terminates; None: no limit."""
    terminate_at_limit: bool = False
    """Treat the step limit as termination instead of truncation."""
    observation_type: ObservationType = "flattened"
    """Content of observations: numbers of all cells of the window, layers of the window, or layers and the agent's own
    features as two sensors."""
    image_observation_layers: tuple[ImageLayer, ...] = Field(
        ("shelves", "requests", "agents", "goals", "accessible"), min_length=1
    )
    """Layers of image observations."""
    image_observation_directional: bool = True
    """Rotate image observations to the direction of the agent."""
    normalized_coordinates: bool = False
    """Observe the agent's place as a fraction of the floor instead of in cells."""
    load_reward: float = Field(0.0, ge=0, le=10)
    """Additional reward for loading a requested shelf, taken back if it is unloaded before its delivery."""
    start_loaded: float = Field(0.0, ge=0, le=1)
    """Probability that an agent on a highway starts with a requested shelf."""
