"""Descriptions of the particle scenarios for their page."""

from __future__ import annotations

from dataclasses import dataclass

Layout = dict[str, tuple[tuple[str, int], ...]]


@dataclass(frozen=True)
class Scenario:
    """Description of one scenario.

    Attributes:
        story: The task, in a few sentences.
        reward: Rewards of each role.
        observation: Parts of each role's observation in their order, with their number of features by default.
        acts: Discrete actions of each role.
        steps: Random steps before the picture is drawn.
        seed: Seed of the episode in the picture.
    """

    story: str
    reward: str
    observation: Layout
    acts: str = "five moves"
    steps: int = 6
    seed: int = 0


_MOVER = (("own velocity", 2), ("own position", 2))
_PURSUIT = (("own velocity", 2), ("own position", 2), ("offsets to the obstacles", 4))
_WORLD = (*_MOVER, ("offsets to obstacles, food and forests", 10), ("offsets to the other agents", 10))
_TRADE = (
    ("the seven others by distance: offset, velocity, the kind each accepts, the kind each holds", 56),
    ("the six treasures by distance: offset and kind, zeros if taken", 24),
)

SCENARIOS: dict[str, Scenario] = {
    "simple": Scenario(
        "One agent walks to a landmark. This is the smallest test of a single-agent method.",
        "-d², where d is the distance to the landmark.",
        {"agent": (("own velocity", 2), ("offset to the landmark", 2))},
    ),
    "simple_spread": Scenario(
        "As many agents as landmarks. Together they have to cover all landmarks without colliding, and they have to "
        "agree on who goes where. A covered landmark is green in pictures.",
        "With D the sum over landmarks of the distance to the nearest agent, and c the agents that touch this one: "
        "`mpe2` -(1 - local_ratio) D - local_ratio c. `openai`: every agent receives the sum over all "
        "agents of -D - c - 1, where the 1 is each agent's collision with itself.",
        {
            "agent": (
                *_MOVER,
                ("offsets to the landmarks", 6),
                ("offsets to the other agents", 4),
                ("zeros, in place of the original's communication", 4),
            )
        },
    ),
    "simple_tag": Scenario(
        "Slower pursuers (`adversary`, red) hunt faster prey (`agent`, green) among obstacles.",
        "A pursuer: +10 for each touch of any pursuer with prey, in every step. Prey: -10 for each of its own touches, "
        "and a penalty for leaving the field: 0 within 0.9 of the center along each axis, then rising to 10.",
        {
            "adversary": (*_PURSUIT, ("offsets to the other agents", 6), ("velocity of the prey", 2)),
            "agent": (*_PURSUIT, ("offsets to the other agents", 6)),
        },
    ),
    "simple_adversary": Scenario(
        "The good agents know which landmark is the goal, the adversary does not. It can only infer it from their "
        "movements, so they should spread out and deceive it.",
        "Good: adversary's distance to the goal - distance of the nearest good agent. Adversary: minus its distance to "
        "the goal (`openai`: its square).",
        {
            "adversary": (("offsets to the landmarks", 4), ("offsets to the other agents", 4)),
            "agent": (
                ("offset to the goal", 2),
                ("offsets to the landmarks", 4),
                ("offsets to the other agents", 4),
            ),
        },
    ),
    "simple_push": Scenario(
        "An agent knows its goal. An adversary, which does not, pushes it away.",
        "Good: minus its distance d to the goal. Adversary: d minus its own distance to the goal.",
        {
            "adversary": (
                ("own velocity", 2),
                ("offsets to the landmarks", 4),
                ("offset to the other agent", 2),
            ),
            "agent": (
                ("own velocity", 2),
                ("offset to the goal", 2),
                ("own color, which identifies the goal", 3),
                ("offsets to the landmarks", 4),
                ("colors of the landmarks", 6),
                ("offset to the other agent", 2),
            ),
        },
    ),
    "simple_speaker_listener": Scenario(
        "The speaker sees which landmark is the goal and cannot move; the listener moves and does not know the goal. "
        "Messages arrive one step later.",
        "Both: -d², where d is the listener's distance to the goal (`openai`: -2 d², the sum of both).",
        {
            "speaker": (("color of the goal", 3),),
            "listener": (("own velocity", 2), ("offsets to the landmarks", 6), ("the speaker's message", 3)),
        },
        "speaker: three symbols; listener: five moves",
    ),
    "simple_reference": Scenario(
        "Both agents move and speak. Each knows the landmark that the *other* one has to reach.",
        "(1 - local_ratio) × mean of both + local_ratio × own, where an agent's own reward is minus the distance of "
        "the other agent to its goal.",
        {
            "agent": (
                ("own velocity", 2),
                ("offsets to the landmarks", 6),
                ("color of the other's goal", 3),
                ("the other's message", 10),
            )
        },
        "five moves × ten symbols: choice = move + 5 × symbol",
        steps=5,
    ),
    "simple_ball": Scenario(
        "Two symmetric sides push a ball into each other's goal. The field has walls, and a goal ends the episode. "
        "This world was made for self-play: both sides observe the field from the left, so one policy can play either.",
        "For a goal, +1 for each player of the side that scored and -1 for each of the others. Shaping: `env.shaping` "
        "times the progress of the ball toward the other side's goal, in half field lengths, and `env.approach` times "
        "the progress of the side's nearest player toward the ball minus that of the other side.",
        dict.fromkeys(
            ("left", "right"),
            (
                *_MOVER,
                ("offset to the ball", 2),
                ("velocity of the ball", 2),
                ("offset to the goal to score in", 2),
                ("offset to the own goal", 2),
                ("offset to the teammate", 2),
                ("velocity of the teammate", 2),
                ("offsets to the opponents", 4),
                ("velocities of the opponents", 4),
            ),
        ),
        "five moves; left and right are swapped for the right side",
        steps=12,
    ),
    "simple_crypto": Scenario(
        "Nobody moves. Alice sends Bob one bit over a channel that Eve reads as well. Alice and Bob share a key.",
        "With e the squared error of the decoded message (0 for silence): Alice and Bob e_eve - e_bob, Eve -e_eve.",
        {
            "eve": (("Alice's message", 4),),
            "bob": (("key", 4), ("Alice's message", 4)),
            "alice": (("message", 4), ("key", 4)),
        },
        "four symbols",
    ),
    "simple_world_comm": Scenario(
        "simple_tag with food for the prey and forests that hide agents inside. One pursuer leads: it observes "
        "everyone and sends messages to the others.",
        "A pursuer: +5 for each touch of any pursuer with prey, -0.1 × its distance to the nearest prey. Prey: -5 for "
        "each of its touches, twice the penalty for leaving the field, +2 for each food it touches, -0.05 × the "
        "distance to the nearest food.",
        {
            "leadadversary": (
                *_WORLD,
                ("velocities of the prey", 4),
                ("for each forest, 1 inside and -1 outside", 2),
                ("the leader's message", 4),
            ),
            "adversary": (
                *_WORLD,
                ("velocities of the prey", 4),
                ("for each forest, 1 inside and -1 outside", 2),
                ("the leader's message", 4),
            ),
            "agent": (
                *_WORLD,
                ("for each forest, 1 inside and -1 outside", 2),
                ("velocity of the other prey", 2),
            ),
        },
        "leader: five moves × four symbols, choice = move + 5 × symbol; others: five moves",
    ),
    "collect_treasure": Scenario(
        "Collectors pick up treasures and bring each to the deposit of its kind. Deposits move too. A taken treasure "
        "reappears elsewhere with a new kind.",
        "All: +5 for every treasure picked up and for every delivery. Collectors: -5 for each collector they "
        "overlap, -0.1 × the distance to their target. Deposits: -0.1 × the distance to the nearest collector that "
        "carries their kind, otherwise to the center of all collectors.",
        {
            "collector": (("own position", 2), ("own velocity", 2), ("the kind that is held", 2), *_TRADE),
            "deposit": (("own position", 2), ("own velocity", 2), *_TRADE),
        },
        steps=16,
    ),
    "simple_formation": Scenario(
        "Agents form a circle of radius 0.5 around a landmark. Positions are evenly spaced, the first one at the "
        "smallest angle of any agent. Agents are assigned to positions with the least total distance.",
        "All: minus the mean distance to the assigned positions, each at most 2.",
        {"agent": (*_MOVER, ("offset to the landmark", 2))},
    ),
    "simple_line": Scenario(
        "Agents form a line of evenly spaced positions between two landmarks that are 1.25 apart.",
        "All: minus the mean distance to the assigned positions, each at most 2.",
        {"agent": (*_MOVER, ("offsets to the landmarks", 4))},
    ),
}
