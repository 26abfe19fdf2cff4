"""Generated blocks about the program: commands, algorithms, environments, keys, presets, metrics."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pkgutil
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import typer
from markdown_tables import code_list, key_table, table

import coterie
from coterie.__main__ import main
from coterie.algos import registry
from coterie.assembly import aliases
from coterie.assembly.resolve import resolve
from coterie.cli.app import app
from coterie.cli.list import algorithm_rows, environment_rows
from coterie.config import sources
from coterie.config.messages import show
from coterie.config.provenance import to_yaml
from coterie.config.schema import RunConfig

ROOT = Path(__file__).resolve().parents[2]


def commands() -> str:
    """Every command with its first sentence."""
    return table(["command", "purpose"], [[f"`coterie {name}`", _summary(command)] for name, command in _commands()])


def cli() -> str:
    """A section per command: purpose, usage, arguments and options."""
    return "\n\n".join(_command(name, command) for name, command in _commands())


def _commands() -> list[tuple[str, Any]]:
    group: Any = typer.main.get_command(app)
    return list(group.commands.items())


def _summary(command: Any) -> str:
    return " ".join(command.help.split("\n\n")[0].split())


def _command(name: str, command: Any) -> str:
    subcommands = getattr(command, "commands", {})
    if not subcommands:
        return "\n\n".join([f"## coterie {name}", *_section(name, command)])
    parts = [f"## coterie {name}", _escape(_summary(command))]
    for sub, inner in subcommands.items():
        parts += [f"### coterie {name} {sub}", *_section(f"{name} {sub}", inner)]
    return "\n\n".join(parts)


def _section(name: str, command: Any) -> list[str]:
    """Purpose, usage, arguments and options, then notes and examples."""
    purpose, *notes = (" ".join(part.split()) for part in command.help.split("\n\n"))
    return [_escape(purpose), _usage(name, command), *_parameters(command), *_notes(notes)]


def _notes(paragraphs: list[str]) -> list[str]:
    """Paragraphs of help text; examples become one code block."""
    examples = [p.removeprefix("Example: ") for p in paragraphs if p.removeprefix("Example: ").startswith("coterie ")]
    text = [_escape(p) for p in paragraphs if p != "Examples:" and p.removeprefix("Example: ") not in examples]
    return [*text, "```text\n" + "\n".join(examples) + "\n```"] if examples else text


def _escape(text: str) -> str:
    """Plain text in Markdown: settings, options, paths and names with underscores are code."""
    if "`" in text:
        return text
    return " ".join(_as_code(word) for word in re.sub(r"\[/?bold\]", "", text).split())


def _as_code(word: str) -> str:
    start, core, end = re.fullmatch(r"([(\"']*)(.*?)([.,;:)\"']*)", word).groups()  # type: ignore[union-attr]
    is_code = re.search(r"[=_*]|^--?\w|\w/\w|\w\.\w", core) and core not in {"e.g", "i.e"}
    return f"{start}`{core}`{end}" if is_code else word


def _usage(name: str, command: Any) -> str:
    words = [_metavar(p) for p in command.params if p.param_type_name == "argument"]
    return "```text\n" + " ".join(["coterie", name, "[OPTIONS]", *words]) + "\n```"


def _metavar(parameter: Any) -> str:
    word = parameter.metavar or parameter.name.upper()
    return word.strip("{}") if parameter.required or word.startswith("[") else f"[{word}]"


def _parameters(command: Any) -> list[str]:
    rows, context = [], typer.Context(command)
    for parameter in command.params:
        text = _escape((getattr(parameter, "help", None) or "").strip())
        if parameter.param_type_name == "argument":
            rows.append([f"`{_metavar(parameter)}`", "", text])
        elif parameter.name != "help":
            names = code_list([*parameter.opts, *parameter.secondary_opts])
            flag = getattr(parameter, "is_flag", False)
            values = "" if flag else f"`{_value(parameter, context)}`"
            default = "" if flag or parameter.default is None else f" Default: `{parameter.default}`."
            rows.append([names, values, text + default])
    return [table(["argument or option", "value", "meaning"], rows)] if rows else []


def _value(parameter: Any, context: Any) -> str:
    """Name or type of an option's value."""
    return parameter.metavar or parameter.display_type(context).strip("<>").removesuffix(" range")


def algorithms() -> str:
    """Every algorithm with its summary and presets."""
    rows = [[f"`{row['name']}`", row["summary"], code_list(row["presets"])] for row in algorithm_rows()]
    return table(["name", "summary", "variants"], rows)


def capabilities() -> str:
    """What every algorithm supports."""
    rows = []
    for row in algorithm_rows():
        actions = ["discrete", "multi_discrete", "continuous", "hybrid"]
        marks = [kind in row["actions"] for kind in actions]
        marks += [row["masks"], row["rnn"] or row["memory"]]
        marks += [row[name] for name in ("images", "roles", "multi_agent", "dying_agents")]
        execution = "centralized" if row["centralized_execution"] else "decentralized"
        learning = ("off-policy" if row["off_policy"] else "on-policy") if row["learns"] else ""
        marked = ["yes" if mark else "" for mark in marks]
        rows.append([f"`{row['name']}`", *marked, execution, learning, row["eval_mode"], row["paper"]])
    head = ["name", "discrete", "multi-discrete", "continuous", "hybrid", "masks", "recurrent", "images", "roles"]
    return table([*head, "multi-agent", "dying agents", "execution", "learning", "evaluation", "paper"], rows)


def environments() -> str:
    """Every environment with its agents and actions, linked to its section."""
    rows = []
    for row in environment_rows():
        roles = ", ".join(f"{role['agents']} `{role['role']}`" for role in row["roles"])
        actions = dict.fromkeys(role["actions"] for role in row["roles"])
        family, _, short = row["name"].partition("/")
        anchor = re.sub(r"[^\w-]", "", short.lower())
        rows.append(
            [f"[`{row['name']}`]({family}.md#{anchor})", roles or "defined by the package", " / ".join(actions)]
        )
    return table(["name", "agents", "actions"], rows)


def run_keys() -> str:
    """Keys of a run, without those of algorithms, environments and teams."""
    return key_table(RunConfig, "", besides=("algo", "env", "teams"))


def job() -> str:
    """An excerpt of `--cfg job`."""
    given = ["env=particle/simple_tag", "teams.agent.algo=random", "algo.lr=5e-4", "steps=2M", "threads=2"]
    lines = to_yaml(resolve(given)).splitlines()
    algo, teams, steps = (
        next(i for i, line in enumerate(lines) if line.startswith(head)) for head in ("algo:", "teams:", "steps:")
    )
    shown = [*lines[algo : algo + 9], "  ...", *lines[teams : teams + 4], "    ...", *lines[steps : steps + 2], "..."]
    return "\n".join(["```yaml", *shown, "```"])


def presets(wanted: Callable[[str], bool] = lambda name: True) -> str:
    """Presets of algorithms, and of algorithms on an environment, with what they set.

    Args:
        wanted: Takes the base name of an algorithm; presets of others are left out.
    """
    rows = []
    for folder in ("algo", "algo_env"):
        for name in sources.presets(folder):
            if wanted(registry.base_name(name)):
                found = sources.preset(folder, name)
                rows.append([f"`{name}`", code_list(f"{s.key}={show(s.value)}" for s in found)])
    return table(["preset", "sets"], [row for row in rows if row[1]])


def families() -> dict[str, list[str]]:
    """Names of algorithms by the module that they are in."""
    found: dict[str, list[str]] = {}
    for name, target in registry.ALGOS.items():
        found.setdefault(target.partition(":")[0].rpartition(".")[2], []).append(name)
    return found


def algorithm_keys() -> str:
    """A section per family of algorithms with its keys."""
    parts = []
    for names in families().values():
        model = registry.algorithm(names[0]).Config
        if model.model_fields:
            parts.append(f"### {code_list(names)}\n\n{key_table(model, 'algo.')}")
    return "\n\n".join(parts)


def metrics() -> str:
    """Every declared metric, area by area."""
    from coterie.core.metrics import declared

    for module in pkgutil.walk_packages(coterie.__path__, "coterie."):
        importlib.import_module(module.name)
    areas: dict[str, list[list[str]]] = {}
    for name, metric in declared().items():
        better = {"up": "higher", "down": "lower", None: ""}[metric.better]
        row = [f"`{name}`", metric.unit, metric.meaning.rstrip("."), better, metric.combine]
        areas.setdefault(name.partition("/")[0], []).append(row)
    head = ["name", "unit", "meaning", "better", "over ranks"]
    return "\n\n".join(f"### {area}\n\n{table(head, rows)}" for area, rows in areas.items())


def math_modules() -> str:
    """Directives that document every module of pure functions."""
    import coterie.functional

    names = [module.name for module in pkgutil.iter_modules(coterie.functional.__path__)]
    return "\n\n".join(
        f"## {name.replace('_', ' ').capitalize()}\n\n"
        f"```{{eval-rst}}\n.. automodule:: coterie.functional.{name}\n   :members:\n```"
        for name in sorted(names)
    )


def example(name: str) -> str:
    """The source of a program in `examples/` as a code block, which the tests also write to a file."""
    code = (ROOT / "examples" / name).read_text(encoding="utf-8").strip()
    return f"<!-- file: {name} -->\n```python\n{code}\n```"


def check_env() -> str:
    """A faulty environment and the report of `coterie check-env`."""
    code = (ROOT / "docs" / "_blocks" / "rough.py").read_text(encoding="utf-8").strip()
    return f"<!-- file: rough.py -->\n```python\n{code}\n```\n\n{_session('coterie check-env rough:Rough')}"


def errors() -> str:
    """Wrong settings and their messages."""
    return _session(
        "coterie train algo.clip_epz=0.2",
        "coterie train env=particle/simple_tga",
        "coterie train num_envs=0",
    )


def alias_examples() -> str:
    """Names of other libraries: one that is accepted, and some whose meaning differs."""
    return _session(
        "coterie train algo.learning_rate=1e-3 --cfg job",
        "coterie train algo=qmix algo.target_update_interval_or_tau=0.01 --cfg job",
        "coterie train algo=ippo algo.minibatch_size=256 --cfg job",
        stdout=False,
    )


def exact_aliases() -> str:
    """Names of other libraries that are accepted."""
    rows = [[f"`{key}`", code_list(names.split())] for key, names in aliases.EXACT.items()]
    return table(["setting", "names that are accepted for it"], rows)


def different_names() -> str:
    """Names of other libraries whose meaning differs, with what to set instead."""
    by_text: dict[str, list[str]] = {}
    for name, text in aliases.DIFFERENT.items():
        by_text.setdefault(text, []).append(name)
    return table(
        ["name elsewhere", "difference"], [[code_list(names), _escape(text)] for text, names in by_text.items()]
    )


def with_differences(page: str) -> str:
    """A table of names elsewhere, settings and differences, with the differences that Coterie's messages name.

    Rows whose first cell has other words besides the names, or names that Coterie does not know, stay as they are.
    """
    exact = {name for names in aliases.EXACT.values() for name in names.split()}
    rows = []
    for row in page.strip().splitlines():
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        names = [name.rpartition(".")[2] for name in re.findall(r"`([^`]*)`", cells[0])]
        by_text: dict[str, list[str]] = {}
        for name in names:
            by_text.setdefault(_escape(aliases.DIFFERENT.get(name, "")), []).append(name)
        texts = [text if own == names else f"{code_list(own)}: {text}" for text, own in by_text.items() if text]
        if re.fullmatch(r"`[\w.]+`(, `[\w.]+`)*", cells[0]) and (texts or exact.issuperset(names)):
            row = f"| {cells[0]} | {cells[1]} | {' '.join(texts) or 'none'} |"
        rows.append(row)
    return "\n".join(rows)


def _session(*lines: str, stdout: bool = True) -> str:
    """Command lines with their output.

    Args:
        lines: The commands.
        stdout: Show standard output too, not only messages.
    """
    parts = []
    for line in lines:
        output = io.StringIO()
        with (
            contextlib.redirect_stdout(output if stdout else io.StringIO()),
            contextlib.redirect_stderr(output),
            mock.patch.dict(os.environ, {"COLUMNS": "80"}),
            mock.patch.object(sys, "path", [str(Path(__file__).parent), *sys.path]),  # for rough.py
        ):
            main(shlex.split(line)[1:])
        parts.append(f"$ {line}\n{output.getvalue().strip()}")
    return "```text\n" + "\n".join(parts) + "\n```"
