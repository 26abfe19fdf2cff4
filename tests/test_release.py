"""Files of a release: metadata, wheels, workflows and containers."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from coterie.kernels import build
from places import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
README = """[a page](docs/index.md#top) [the web](https://example.org) [here](#install)
<img src="docs/pictures/a.gif" alt=""> ![](docs/b.png)
"""


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The build hooks, without hatchling, which is installed only while pip builds."""

    class Plugin:
        root = str(ROOT)

    for name, member in (("builders.hooks", "BuildHookInterface"), ("metadata", "MetadataHookInterface")):
        interface = ModuleType("interface")
        setattr(interface, member, Plugin)
        monkeypatch.setitem(sys.modules, f"hatchling.{name}.plugin.interface", interface)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_of_the_readme_lead_to_the_repository(hooks: ModuleType) -> None:
    text = hooks.with_absolute_links(README, "https://host/us/coterie")
    assert text.splitlines() == [
        "[a page](https://host/us/coterie/blob/main/docs/index.md#top) [the web](https://example.org) [here](#install)",
        '<img src="https://host/us/coterie/raw/main/docs/pictures/a.gif" alt=""> '
        "![](https://host/us/coterie/raw/main/docs/b.png)",
    ]
    assert hooks.with_absolute_links(README, None) == README


def test_the_repository_is_that_of_the_citation_else_of_the_workflow(hooks: ModuleType) -> None:
    workflow = {"GITHUB_REPOSITORY": "us/coterie", "GITHUB_SERVER_URL": "https://host"}
    assert hooks.repository("title: x\nrepository-code: 'https://own/coterie/'\n", workflow) == "https://own/coterie"
    assert hooks.repository("title: x\n", workflow) == "https://host/us/coterie"
    assert hooks.repository("title: x\n", {}) is None


def test_the_metadata_of_a_release_has_addresses_and_no_relative_link(hooks: ModuleType, monkeypatch: Any) -> None:
    monkeypatch.setenv("GITHUB_REPOSITORY", "us/coterie")
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://host")
    metadata: dict[str, Any] = {}
    hooks.AddressesHook().update(metadata)
    assert {"Source", "Documentation", "Changelog", "Issues"} <= metadata["urls"].keys()
    links = re.findall(r'\]\(([^)]+)\)|src="([^"]+)"', metadata["readme"]["text"])
    assert len(links) > 20
    assert [link for pair in links for link in pair if link and not link.startswith(("https://", "#"))] == []


def test_a_build_compiles_kernels_only_if_asked_and_never_into_the_home_folder(
    hooks: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiled: list[str] = []

    def compile_library(compiler: object, flags: tuple[str, ...], library: Path) -> None:
        compiled.extend(flag for flag in flags if flag.startswith("-march"))
        library.touch()

    monkeypatch.setattr(build, "compile_library", compile_library)
    monkeypatch.setattr(build, "find_compiler", lambda: build.Compiler("c++", "1"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("COTERIE_KERNELS", raising=False)
    for levels, version in (("", "standard"), ("", "editable"), ("x86-64-v3", "editable")):
        monkeypatch.setenv("COTERIE_KERNELS", levels)
        data: dict[str, Any] = {"force_include": {}}
        hooks.KernelsHook().initialize(version, data)
        assert data == {"force_include": {}}
    monkeypatch.setenv("COTERIE_KERNELS", "x86-64-v3 x86-64-v4")
    hook = hooks.KernelsHook()
    hook.initialize("standard", data)
    assert compiled == ["-march=x86-64-v3", "-march=x86-64-v4"]
    assert not data["pure_python"]
    assert [Path(path).exists() for path in data["force_include"]] == [True, True]
    assert set(data["force_include"].values()) == {
        f"coterie/kernels/prebuilt/{build.prebuilt_name(level)}" for level in ("x86-64-v3", "x86-64-v4")
    }
    hook.finalize("standard", data, "")
    assert not any(Path(path).exists() for path in data["force_include"])
    assert not (tmp_path / "cache").exists()


def test_the_oldest_python_is_the_same_everywhere() -> None:
    oldest = PROJECT["requires-python"].removeprefix(">=")
    supported = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", c)]
    assert supported == ["3.11", "3.12", "3.13", "3.14"]
    assert supported[0] == oldest
    pyproject = (ROOT / "pyproject.toml").read_text()
    assert f'target-version = "py{oldest.replace(".", "")}"' in pyproject
    assert f'pythonVersion = "{oldest}"' in pyproject
    for page in ("README.md", "docs/getting-started/installation.md"):
        assert re.findall(r"Python (3\.\d+) or newer", (ROOT / page).read_text()) == [oldest]


def test_every_requirement_has_a_lower_bound_that_ci_tests() -> None:
    script = (ROOT / ".ci" / "lowest-versions").read_text()
    extras = re.search(r'^extras="(.+)"$', script, re.M)[1].split()  # type: ignore[index]
    lines = [line for extra in extras for line in PROJECT["optional-dependencies"][extra]]
    for line in [*PROJECT["dependencies"], *lines]:
        assert re.fullmatch(r"[\w-]+(\[[\w,-]+\])?>=[\w.]+", line), line  # what the script reads
    assert any(".ci/lowest-versions" in str(step) for step in WORKFLOWS["ci"]["jobs"]["lowest"]["steps"])


def test_all_names_the_extras_that_any_user_can_install() -> None:
    extras = PROJECT["optional-dependencies"]
    named = set(re.fullmatch(r"coterie\[(.+)\]", *extras["all"])[1].split(","))  # type: ignore[index]
    tools = {"all", "test", "docs", "dev", "mutation", "browser"}
    assert extras.keys() - named - tools == {"vmas", "football"}


def test_a_release_is_published_only_after_its_wheels_were_tested() -> None:
    jobs = WORKFLOWS["release"]["jobs"]
    assert jobs["publish"]["needs"] == "test"
    assert jobs["test"]["needs"] == "build"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets" not in str(jobs)
    assert {"3.11", "3.14"} == set(jobs["test"]["strategy"]["matrix"]["python"])


def test_scripts_that_workflows_run_exist() -> None:
    commands = [
        step["run"] for workflow in WORKFLOWS.values() for job in workflow["jobs"].values() for step in job["steps"]
        if "run" in step
    ]  # fmt: skip
    scripts = {name for command in commands for name in re.findall(r"\.ci/[\w-]+", command)}
    assert {".ci/run", ".ci/wheel", ".ci/release", ".ci/lowest-versions"} <= scripts
    assert all(os.access(ROOT / name, os.X_OK) for name in scripts)
    assert ".ci/release" in (ROOT / ".ci" / "run").read_text()


def test_files_that_the_container_is_built_from_reach_it() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.M)
    names = {name for line in copied for name in line.split()}
    sent = set(re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.M))
    assert names == sent
    assert {"pyproject.toml", "hatch_build.py", "README.md", "CITATION.cff", "src"} <= names
    assert all((ROOT / name).exists() for name in names)


@pytest.mark.slow
def test_the_two_containers_train_one_run_and_continue_it(tmp_path: Path) -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]

    def started(name: str, folder: Path) -> subprocess.Popen[str]:
        service = services[name]
        given = {key: re.sub(r"^\$\{\w+:-(.*)\}$", r"\1", value) for key, value in service["environment"].items()}
        own = {"MASTER": "127.0.0.1", "PORT": str(port), "RUN": settings, "GLOO_SOCKET_IFNAME": "lo"}
        command = [*service["entrypoint"], service["command"][0].replace("$$", "$")]
        return subprocess.Popen(
            command, cwd=tmp_path, env={**os.environ, **given, **own, "PATH": f"{folder}:{os.environ['PATH']}"},
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def printed(folder: Path) -> list[str]:
        ranks = [started(name, folder) for name in services]
        found = [rank.communicate(timeout=240)[0] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0], found
        return found

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    settings = "algo=ippo env=particle/simple_spread num_envs=4 steps=200 eval.episodes=4 progress=lines threads=1"
    assert "run: runs/two-ranks" in printed(Path(sys.executable).parent)[0]
    assert (tmp_path / "runs" / "two-ranks" / "manifest.json").exists()
    (tmp_path / "torchrun").write_text('#!/bin/sh\necho "$*"\n')  # now the run exists
    (tmp_path / "torchrun").chmod(0o755)
    assert printed(tmp_path) == [
        f"--nnodes=2 --node-rank={rank} --nproc-per-node=1 --master-addr=127.0.0.1 --master-port={port} "
        "-m coterie resume runs/two-ranks\n"
        for rank in range(2)
    ]
