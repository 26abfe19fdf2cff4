from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from helpers.report_runs import write_run, write_runs

from coterie.commands.report import ReportOptions, write_report
from coterie.core.errors import UserError
from coterie.core.markup import Markup, cell, element, table
from coterie.reports.options import CompareOptions
from coterie.reports.page import as_json


class Reader(HTMLParser):
    """Elements of a page: names with attributes, and the text of scripts and styles."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._open = tag if tag in self.raw else ""
        if self._open:
            self.raw[tag].append("")

    def handle_data(self, data: str) -> None:
        if self._open:
            self.raw[self._open][-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def data(self) -> dict[str, Any]:
        return json.loads(self.raw["script"][0])

    def attribute(self, name: str) -> list[str]:
        return [value for _, attributes in self.found for key, value in attributes.items() if key == name and value]


def written(out: Path, *runs: Path, **selected: Any) -> str:
    found = write_report(runs, ReportOptions(out=out), CompareOptions(**selected))
    return found.path.read_text()


def test_text_and_attributes_are_escaped_and_markup_is_not_escaped_again() -> None:
    made = element("p", "a<b & c", element("i", '"'), title='"><x', hidden=True, id=None, class_="k")
    assert made == '<p title="&quot;&gt;&lt;x" hidden class="k">a&lt;b &amp; c<i>&quot;</i></p>'
    assert element("line", x1=3) == '<line x1="3"/>'
    assert isinstance(made, Markup)


def test_cells_with_values_to_sort_by_stay_cells() -> None:
    made = table(["a", "b", "c"], [["x", cell("1,000", value=1000), "<y>"]])
    assert '<th scope="row">x</th><td data-value="1000">1,000</td><td>&lt;y&gt;</td>' in made


def test_data_cannot_end_its_script_element() -> None:
    text = as_json({"</script><!--": "\u2028"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"</script><!--": "\u2028"}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    return written(folder / "report.html", write_runs(folder / "runs"))


def test_a_page_names_the_finding_of_each_task_with_interval_and_seeds(page: str) -> None:
    findings = re.findall(r'<p class="finding">(.*?)</p>', page)
    assert len(findings) == 3
    for task, finding in zip(("matrix/climbing", "matrix/penalty"), findings, strict=False):
        assert finding.startswith(f"On {task}, vdn has a team return of 16.0 (95% CI ")
        assert "3 seeds" in finding
    assert findings[2].startswith("Over 2 tasks")


def test_a_page_needs_nothing_from_a_network(page: str) -> None:
    reader = Reader(page)
    links = [link for name in ("src", "href", "action", "poster") for link in reader.attribute(name)]
    assert all(link.startswith(("#", "data:,")) for link in links)
    assert "http" not in "".join(reader.raw["style"])
    assert set(re.findall(r"https?://[^\"' ]+", page)) == {"http://www.w3.org/2000/svg"}


def test_the_policy_allows_exactly_the_scripts_and_styles_of_the_page(page: str) -> None:
    reader = Reader(page)
    policy = next(a["content"] for tag, a in reader.found if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    for kind, text in (("script", reader.raw["script"][1]), ("style", reader.raw["style"][0])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert not reader.attribute("style")
    assert not [name for _, a in reader.found for name in a if name.startswith("on")]


def test_charts_have_curves_over_steps_and_seconds_with_bands_seeds_and_one_color_per_algorithm(page: str) -> None:
    charts = Reader(page).data()["charts"]
    assert list(charts) == ["task0", "task1", "overall", "profile"]
    for key in ("task0", "task1"):
        colors = {one["group"]: one["color"] for one in charts[key]["series"]}
        assert colors == {"ippo": 0, "vdn": 1}
        assert charts[key]["levels"] == [{"kind": "random", "label": "random policy", "value": -5}]
    vdn = charts["task0"]["series"][1]
    assert vdn["steps"]["x"] == [0, 500, 1000, 1500, 2000]
    assert vdn["steps"]["y"] == [-5, 0.25, 5.5, 10.75, 16]
    assert vdn["steps"]["low"][-1] < 16 < vdn["steps"]["high"][-1]
    assert [seed["name"] for seed in vdn["seeds"]] == [0, 1, 2]
    assert vdn["seeds"][2]["seconds"] == [2, 7, 12, 17, 22]


@pytest.mark.skipif(shutil.which("node") is None and "CI" not in os.environ, reason="needs Node.js")
def test_ticks_end_for_ranges_below_the_resolution_of_numbers() -> None:
    chart = (resources.files("coterie.reports") / "page" / "chart.js").read_text(encoding="utf-8")
    ranges = [[0, 100], [1e9, 1e9 + 1e-7], [2e7, 2e7], [0, 0], [-1e-320, 1e-320], [-1e308, 1e308]]
    script = f"{chart}\nconsole.log(JSON.stringify({ranges}.map(([low, high]) => ticks(low, high, 5).places)))"
    found = subprocess.run(["node", "-"], input=script, capture_output=True, text=True, timeout=60, check=True).stdout
    assert json.loads(found)[:4] == [[0, 20, 40, 60, 80, 100], [1e9], [2e7], [0]]
    assert max(map(len, json.loads(found))) < 12


def test_equal_runs_give_equal_pages(tmp_path: Path) -> None:
    runs = write_run(tmp_path / "a")
    assert written(tmp_path / "1.html", runs) == written(tmp_path / "2.html", runs)


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    name = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u202e"
    run = write_run(tmp_path / "a", algo=name, command=["coterie", "train", name], hardware={"cpu": name})
    text = written(tmp_path / "report.html", run)
    reader = Reader(text)
    assert len(reader.raw["script"]) == 2
    assert "img" not in [tag for tag, _ in reader.found]
    assert reader.data()["charts"]["task0"]["series"][0]["group"] == name


def test_hardware_of_other_types_is_left_out(tmp_path: Path) -> None:
    hardware = {"cpu": 5, "cores": "x", "memory_bytes": [1], "gpus": 5}
    run = write_run(tmp_path / "a", hardware=hardware, started="\x1b[31m\u202e")
    text = written(tmp_path / "page.html", run)
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_one_seed_has_no_intervals_and_the_page_says_so(tmp_path: Path) -> None:
    text = written(tmp_path / "report.html", write_run(tmp_path / "a"))
    assert "One seed, no intervals" in text
    assert "no interval</small>" in text
    assert "low" not in Reader(text).data()["charts"]["task0"]["series"][0]["steps"]


def test_unfinished_runs_are_listed_without_values(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a")
    write_run(tmp_path / "runs" / "half", seed=1, steps=1000)
    text = written(tmp_path / "report.html", tmp_path / "runs")
    assert "1,000 of 2,000" in text
    assert "Rows without values were left out" in text


@pytest.mark.parametrize("out", ["report.pdf", "report"])
def test_other_file_types_are_refused_before_anything_is_read(tmp_path: Path, out: str) -> None:
    with pytest.raises(UserError, match=r"ends in \.html"):
        written(tmp_path / out, tmp_path / "nothing")
