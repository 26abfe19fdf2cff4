"""Files that are written next to exports and need no other: the player, and a PyTorch module."""

from __future__ import annotations

from importlib import resources

PLAYER, TORCH_POLICY = "coterie_player.py", "coterie_policy_torch.py"

_PLAYER_PARTS = ("policy_files.py", "network.py", "policy.py", "checked_numbers.py", "player.py")
_TORCH_PARTS = ("policy_files.py", "torch_policy.py")
_SAFE = """An export holds numbers and
descriptions: reading it executes no code from it. Files that were truncated or changed are refused with `PolicyError`.
"""

_PLAYER_HEADER = '''"""Acts with teams that `coterie export` wrote, without Coterie and PyTorch.

    from coterie_player import Player

    player = Player("exported")
    player.reset()
    actions = player.act({"agent_0": obs_0, "agent_1": obs_1, "agent_2": obs_2})

This file needs Python 3.10, NumPy, and onnxruntime for exports to ONNX. Copy it next to your program. {safe}"""
'''

_TORCH_HEADER = '''"""Loads teams that `coterie export --format torch` wrote as PyTorch modules, without Coterie.

    from coterie_policy_torch import TorchPolicy

    policy = TorchPolicy("exported/agent")
    outputs = policy({"obs.agent": obs, "mask.agent": mask, "noise.agent": noise})

This file needs Python 3.10, NumPy and PyTorch. Copy it next to your program. {safe}"""
'''


def player_source() -> str:
    """Returns the source of `coterie_player.py`."""
    return _joined(_PLAYER_PARTS, _PLAYER_HEADER)


def torch_source() -> str:
    """Returns the source of `coterie_policy_torch.py`."""
    return _joined(_TORCH_PARTS, _TORCH_HEADER)


def _joined(names: tuple[str, ...], header: str) -> str:
    """Modules of `portable` in one file, with their imports at the top."""
    imports: set[str] = set()
    bodies = []
    for name in names:
        text = (resources.files("coterie.commands.export.portable") / name).read_text(encoding="utf-8")
        lines = text.split('"""', 2)[2].lstrip("\n").splitlines()
        start = next(i for i, line in enumerate(lines) if line and not line.startswith(("import ", "from ")))
        imports |= {line for line in lines[:start] if line and not line.startswith("from coterie.")}
        bodies.append("\n".join(lines[start:]).strip())
    future = "from __future__ import annotations"
    packages = sorted(line for line in imports if line.split()[1].partition(".")[0] in {"numpy", "torch"})
    standard = sorted(imports - set(packages) - {future})
    head = [header.replace("{safe}", _SAFE), future, "", *standard, "", *packages]
    return "\n".join(head) + "\n\n\n" + "\n\n\n".join(bodies) + "\n"
