"""`coterie_player.py`: the player as a single file that needs no other."""

from __future__ import annotations

from importlib import resources

_PARTS = ("policy_files.py", "network.py", "policy.py", "player.py")

_HEADER = '''"""Acts with teams that `coterie export` wrote, without Coterie and PyTorch.

    from coterie_player import Player

    player = Player("exported")
    player.reset()
    actions = player.act({"agent_0": obs_0, "agent_1": obs_1, "agent_2": obs_2})

This file needs Python 3.10, NumPy, and onnxruntime for exports to ONNX. Copy it next to your program. An export holds
numbers and descriptions: reading it executes no code from it. Files that were truncated or changed are refused with
`PolicyError`.
"""
'''


def player_source() -> str:
    """Returns the source of `coterie_player.py`: the modules of `portable`, with their imports in one place."""
    imports: set[str] = set()
    bodies = []
    for name in _PARTS:
        text = (resources.files("coterie.commands.export.portable") / name).read_text(encoding="utf-8")
        lines, body = text.split('"""', 2)[2].lstrip("\n").splitlines(), []
        start = next(i for i, line in enumerate(lines) if line and not line.startswith(("import ", "from ")))
        imports |= {line for line in lines[:start] if line and not line.startswith("from coterie.")}
        body = lines[start:]
        bodies.append("\n".join(body).strip())
    imports.discard("from __future__ import annotations")
    own = sorted(line for line in imports if "numpy" not in line)
    head = "\n".join([_HEADER, "from __future__ import annotations", "", *own, "", "import numpy as np"])
    return head + "\n\n" + "\n\n\n".join(bodies) + "\n"
