"""R-PIPE-04: what `pip install 'postbus[spark]'` brings is enough, for Spark Connect as well."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[3]
BLOCKED = """
import sys
blocked = {names!r}
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"no module named {{name!r}} is installed", name=name)
sys.meta_path.insert(0, Finder())
"""


def listed(*files: str) -> list[Requirement]:
    """What the lists say by themselves; pyproject.toml makes the package's needs from them."""
    lines = [
        line for name in files for line in (ROOT / "requirements" / name).read_text().split("\n")
    ]
    return [Requirement(line) for line in lines if line and line[0] not in "#-"]


def brought(wanted: list[Requirement]) -> set[str]:
    """The distributions that are installed with these, by their names in lower case."""
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    while wanted:
        one = wanted.pop()
        for extra in ("", *one.extras):
            if (one.name, extra) in seen:
                continue
            seen.add((one.name, extra))
            try:
                needs = requires(one.name) or []
            except PackageNotFoundError:
                continue  # for another system
            found.add(plain(one.name))
            needed = map(Requirement, needs)
            wanted += [
                each for each in needed
                if each.marker is None or each.marker.evaluate({"extra": extra})
            ]  # fmt: skip
    return found


def plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


@pytest.mark.parametrize(
    "program",
    [
        "from pyspark.sql.connect.session import SparkSession",
        "import pyspark_postbus.source, pyspark_postbus.stream_reader, pyspark_postbus.writers",
        "import pyspark_postbus.pipelines.console, postbus.cli.pipeline",
    ],
)
def test_no_more_is_needed_than_what_the_documented_install_brings(program: str) -> None:
    there = brought(listed("runtime.in", "spark.in")) | {"postbus"}
    others = {
        module
        for module, owners in packages_distributions().items()
        if not {plain(owner) for owner in owners} & there
    }
    assert "pytest" in others, "nothing is left out: this would show nothing"
    code = BLOCKED.format(names=others) + program
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-600:]
