"""A policy that acts by a given function."""

import torch

from coterie.policies.base import Policy


class Rule(Policy):
    """Acts by a function of the team's timestep, and of the previous observation if it is recurrent.

    Args:
        team: The team.
        function: Returns actions by role from a timestep, or from a timestep and the previous observation.
        recurrent: True if the function reads the previous observation, which the hidden state stores.
    """

    def __init__(self, team, function, recurrent=False):
        self.team, self._function, self._recurrent = team, function, recurrent

    def initial_hidden_state(self, num_envs):
        return {"obs": torch.zeros(num_envs, self.team.n, 1)} if self._recurrent else {}

    def draw_noise(self, steps, num_envs, generator):
        return [None] * steps

    def act(self, timestep, hidden_state, noise, mode):
        if not self._recurrent:
            return self._function(timestep), hidden_state, {}
        (obs,) = timestep.obs.values()
        previous = hidden_state["obs"].masked_fill(timestep.first[..., None], 0)
        return self._function(timestep, previous), {"obs": obs[..., :1]}, {}

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass
