"""What the page of the particle worlds says of each scenario beside what the code says of itself."""

from __future__ import annotations

from dataclasses import dataclass

Layout = dict[str, tuple[tuple[str, int], ...]]


@dataclass(frozen=True)
class Scenario:
    """story: what happens, in a few sentences; reward: of every role; observation: by role, its parts in their order
    and how many features each has with default parameters; acts: what the choices of each role are; steps, seed: when
    and of which episode the picture is.
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
    ("the seven others by distance: offset, velocity, the kind each takes, the kind each holds", 56),
    ("the six treasures by distance: offset and kind, zeros for one that is taken", 24),
)

SCENARIOS: dict[str, Scenario] = {
    "simple": Scenario(
        "One agent walks to a landmark. It is the smallest test of a single-agent method.",
        "-d², d being the distance to the landmark.",
        {"agent": (("own velocity", 2), ("offset to the landmark", 2))},
    ),
    "simple_spread": Scenario(
        "As many agents as landmarks. Together they should cover all landmarks, and they should not touch. Who goes "
        "where is for them to find out. A covered landmark turns green in pictures.",
        "With D the sum over landmarks of the distance to the nearest agent, and c the agents that touch this one: "
        "`mpe2` -(1 - local_ratio) D - local_ratio c. `openai`: every agent gets the sum over all agents of "
        "-D - c - 1, the 1 being each agent's collision with itself.",
        {
            "agent": (
                *_MOVER,
                ("offsets to the landmarks", 6),
                ("offsets to the other agents", 4),
                ("zeros, where the original has room for speech", 4),
            )
        },
    ),
    "simple_tag": Scenario(
        "Slower pursuers (`adversary`, red) hunt faster prey (`agent`, green) among obstacles.",
        "A pursuer: +10 for each touch of any pursuer with prey, in every step. Prey: -10 for each of its own touches, "
        "and a cost for leaving the field: 0 within 0.9 of the centre along each axis, then rising to 10.",
        {
            "adversary": (*_PURSUIT, ("offsets to the other agents", 6), ("velocity of the prey", 2)),
            "agent": (*_PURSUIT, ("offsets to the other agents", 6)),
        },
    ),
    "simple_adversary": Scenario(
        "The good agents know which landmark is the goal, the adversary does not. It can only guess from where they "
        "go; so they should spread out and deceive it.",
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
                ("own colour, which tells the goal", 3),
                ("offsets to the landmarks", 4),
                ("colours of the landmarks", 6),
                ("offset to the other agent", 2),
            ),
        },
    ),
    "simple_speaker_listener": Scenario(
        "The speaker sees which landmark is the goal and cannot move; the listener moves and does not know the goal. "
        "What is said arrives one step later.",
        "Both: -d², d being the listener's distance to the goal (`openai`: -2 d², the sum of both).",
        {
            "speaker": (("colour of the goal", 3),),
            "listener": (("own velocity", 2), ("offsets to the landmarks", 6), ("what the speaker said", 3)),
        },
        "speaker: three symbols; listener: five moves",
    ),
    "simple_reference": Scenario(
        "Both agents move and speak. Each knows the landmark that the *other* one has to reach.",
        "(1 - local_ratio) × mean of both + local_ratio × own, an agent's own being minus the distance of the other "
        "one to its goal.",
        {
            "agent": (
                ("own velocity", 2),
                ("offsets to the landmarks", 6),
                ("colour of the other's goal", 3),
                ("what the other said", 10),
            )
        },
        "five moves × ten symbols: choice = move + 5 × symbol",
        steps=5,
    ),
    "simple_ball": Scenario(
        "Two equal sides push a ball into each other's goal. The field has walls; a goal ends the game. A world of "
        "this project's own, for self-play: both sides see the field as left does, so that one policy can play either.",
        "Of a goal +1 for each player of the side that scored, -1 for each of the others; on the way `env.shaping` "
        "times what the ball came nearer to the other side's goal, in lengths of half the field, and `env.approach` "
        "times what the nearest of the side came nearer to the ball, less what the nearest of the other side did.",
        dict.fromkeys(
            ("left", "right"),
            (
                *_MOVER,
                ("offset to the ball", 2),
                ("velocity of the ball", 2),
                ("offset to the goal to score in", 2),
                ("offset to the own goal", 2),
                ("offset to the mate", 2),
                ("velocity of the mate", 2),
                ("offsets to the opponents", 4),
                ("velocities of the opponents", 4),
            ),
        ),
        "five moves; for right, left and right are exchanged",
        steps=12,
    ),
    "simple_crypto": Scenario(
        "Nobody moves. Alice tells Bob one bit over a channel that Eve hears as well; Alice and Bob share a key.",
        "With e the squared error of what one believes the message to be (0 for silence): Alice and Bob e_eve - e_bob, "
        "Eve -e_eve.",
        {
            "eve": (("what Alice says", 4),),
            "bob": (("key", 4), ("what Alice says", 4)),
            "alice": (("message", 4), ("key", 4)),
        },
        "four symbols",
    ),
    "simple_world_comm": Scenario(
        "simple_tag with food that prey wants, and with forests that hide who is in them. One pursuer leads: it sees "
        "everybody and speaks to the others.",
        "A pursuer: +5 for each touch of any pursuer with prey, -0.1 × its distance to the nearest prey. Prey: -5 for "
        "each of its touches, twice the cost of leaving the field, +2 for each food it touches, -0.05 × the distance "
        "to the nearest food.",
        {
            "leadadversary": (
                *_WORLD,
                ("velocities of the prey", 4),
                ("a sign for each forest, 1 inside and -1 outside", 2),
                ("what the leader said", 4),
            ),
            "adversary": (
                *_WORLD,
                ("velocities of the prey", 4),
                ("a sign for each forest, 1 inside and -1 outside", 2),
                ("what the leader said", 4),
            ),
            "agent": (
                *_WORLD,
                ("a sign for each forest, 1 inside and -1 outside", 2),
                ("velocity of the other prey", 2),
            ),
        },
        "leader: five moves × four symbols, choice = move + 5 × symbol; others: five moves",
    ),
    "collect_treasure": Scenario(
        "Collectors pick treasures up and bring each to the deposit of its kind. Deposits move too. A treasure that "
        "was taken comes back elsewhere, of a new kind.",
        "All: +5 for every treasure picked up and for every one delivered. Collectors: -5 for each collector they "
        "overlap, -0.1 × the distance to where they should go. Deposits: -0.1 × the distance to the nearest collector "
        "that brings their kind, else to the centre of all collectors.",
        {
            "collector": (("own position", 2), ("own velocity", 2), ("the kind that is held", 2), *_TRADE),
            "deposit": (("own position", 2), ("own velocity", 2), *_TRADE),
        },
        steps=16,
    ),
    "simple_formation": Scenario(
        "Agents form a circle of radius 0.5 around a landmark. Places stand evenly, the first one at the smallest "
        "angle of any agent; agents are assigned to places at the least total distance.",
        "All: minus the mean distance to the assigned places, each at most 2.",
        {"agent": (*_MOVER, ("offset to the landmark", 2))},
    ),
    "simple_line": Scenario(
        "Agents stand evenly in a line between two landmarks, 1.25 apart.",
        "All: minus the mean distance to the assigned places, each at most 2.",
        {"agent": (*_MOVER, ("offsets to the landmarks", 4))},
    ),
}
