"""The official Java SDK: found by Maven, which must be installed and must have it or get it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

PROJECT = Path(__file__).parent.parent / "java"
_OFFLINE_S = 60.0
_ONLINE_S = 600.0


class NoJava(Exception):
    """Why the Java SDK cannot be had here."""


def class_path(folder: Path, download: bool) -> str:
    """Where the SDK's classes are. Without `download` only what Maven has already is used."""
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            raise NoJava(f"{tool} is not installed")
    written = folder / "classpath.txt"
    command = ["mvn", "--quiet", "--batch-mode", "--file", str(PROJECT / "pom.xml")]
    goal = ["dependency:build-classpath", f"-Dmdep.outputFile={written}"]
    problem = _run([*command, "--offline", *goal], _OFFLINE_S)
    if problem and download:
        problem = _run([*command, *goal], _ONLINE_S)
    elif problem:
        problem = f"Maven has no copy of the Java SDK (make test-long gets one): {problem}"
    if problem:
        raise NoJava(problem)
    return written.read_text().strip()


def _run(command: list[str], within_s: float) -> str | None:
    try:
        ended = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=within_s
        )
    except subprocess.TimeoutExpired:
        return f"mvn took longer than {within_s} s"
    return None if ended.returncode == 0 else (ended.stdout + ended.stderr).strip()[:300]


def play(classes: str, program: str, *arguments: str, within_s: float = 180.0) -> dict[str, str]:
    """Run a program of scenes; returns what it says of each."""
    said = run_source(classes, PROJECT / program, *arguments, within_s=within_s)
    return dict(line.split(": ", 1) for line in said.splitlines() if ": " in line)


def run_source(classes: str, program: Path, *arguments: str, within_s: float = 180.0) -> str:
    """Run a program from its source; returns what it prints."""
    ended = subprocess.run(
        ["java", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off",
         "-cp", classes, str(program), *arguments],
        check=False, capture_output=True, text=True, timeout=within_s,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
