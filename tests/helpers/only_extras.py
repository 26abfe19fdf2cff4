"""Runs a Python program as in an environment that has Coterie with some of its extras, and nothing else.

python only_extras.py "" -m coterie train
python only_extras.py docs docs/generate.py --check
"""

import re
import runpy
import sys
import tomllib
from importlib import metadata
from importlib.abc import MetaPathFinder
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def installed(extras: list[str]) -> set[str]:
    """Names of the distributions that Coterie needs with these extras, itself included."""
    found: set[str] = set()
    queue = [("coterie", ""), *(("coterie", extra) for extra in extras)]
    seen = set(queue)
    while queue:
        name, extra = queue.pop()
        found.add(name)
        for need in _needs(name, extra):
            new = {(normal(need.name), one) for one in ("", *need.extras)} - seen
            seen |= new
            queue += new
    return found


def _needs(name: str, extra: str) -> list[Requirement]:
    if name == "coterie":  # its metadata may be those of another checkout
        return list(map(Requirement, PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]))
    try:
        needs = list(map(Requirement, metadata.requires(name) or []))
    except metadata.PackageNotFoundError:  # needed on another system
        return []
    return [need for need in needs if need.marker is None or need.marker.evaluate({"extra": extra})]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class Missing(MetaPathFinder):
    """Finds no module of other distributions."""

    def __init__(self, extras: list[str]):
        kept = installed(extras)
        owners = metadata.packages_distributions()
        self.hidden = {name for name, dists in owners.items() if not kept & set(map(normal, dists))}

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname.partition(".")[0] in self.hidden:
            raise ModuleNotFoundError(f"{fullname}: not installed", name=fullname)


if __name__ == "__main__":
    extras, program, *arguments = sys.argv[1:]
    sys.meta_path.insert(0, Missing([extra for extra in extras.split(",") if extra]))
    del sys.path[0]  # this folder
    if program == "-m":
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [program, *arguments]
        sys.path.insert(0, str(Path(program).resolve().parent))
        runpy.run_path(program, run_name="__main__")
