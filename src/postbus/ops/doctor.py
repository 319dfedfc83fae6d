"""An operator's first questions: which code runs here, on what, and is anything in its way?

Facts, each with a verdict. Nothing is changed and no broker is started. A data folder in use is
examined from outside.
"""

import os
import platform
import resource
import time
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import version
from pathlib import Path
from pkgutil import walk_packages
from statistics import median
from tempfile import TemporaryFile
from typing import Final, NamedTuple

import postbus
from postbus.net.listener import OTHER_FILES
from postbus.settings import Settings
from postbus.store.opening import store_library
from postbus.tls.certificates import EXPIRES_SOON_DAYS, CertificateError, certificate_files
from postbus.tls.pem import load_certificate

SYNCS: Final = 5
SYNC_BYTES: Final = 4_096
SYNC_SLOW_MS: Final = 20.0
"""Above this, every unpipelined client waits for the disk more than for anything else."""
FREE_BYTES_MIN: Final = 1 << 30


class Finding(NamedTuple):
    """One fact, with its verdict."""

    name: str
    fact: str
    trouble: str = ""
    """The remedy; empty when all is well."""


def examine(settings: Settings) -> list[Finding]:
    """Examine everything."""
    found = [
        Finding("postbus", version("postbus")),
        Finding("python", f"{platform.python_implementation()} {platform.python_version()}"),
        _build(),
        Finding(*store_library()),
        _files(settings.connections_max),
        _tls(settings),
    ]
    if not settings.ephemeral:
        found += _data(settings.data)
    return found


def compiled_modules() -> list[str]:
    """The modules of this installation that are machine code, as this Python finds them. Modules
    that are C from the start have names with an underscore, and do not count."""
    found = []
    for module in walk_packages(postbus.__path__, "postbus."):
        spec = module.module_finder.find_spec(module.name, None)
        is_machine_code = str(spec and spec.origin).endswith(tuple(EXTENSION_SUFFIXES))
        if is_machine_code and "._" not in module.name:
            found.append(module.name)
    return sorted(found)


def _build() -> Finding:
    count = len(compiled_modules())
    fact = f"compiled, {count} modules" if count else "interpreted"
    return Finding("hot modules", fact)


def _files(connections_max: int) -> Finding:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections_max + OTHER_FILES
    if hard == resource.RLIM_INFINITY or hard >= wanted:
        return Finding("open files", f"enough for {connections_max} connections")
    return Finding(
        "open files",
        f"{hard} allowed, {wanted} wanted for {connections_max} connections",
        "raise the limit of open files (ulimit -n, LimitNOFILE) or lower connections_max",
    )


def _tls(settings: Settings) -> Finding:
    files = certificate_files(settings)
    if files is None or not (files.required or files.certificate.exists()):
        return Finding("tls", "off: no certificate is set, and none was made (postbus cert)")
    try:
        certificate = load_certificate(files)
    except CertificateError as error:
        return Finding("tls", str(files.certificate), str(error))
    left = certificate.days_left()
    trouble = ""
    if left < EXPIRES_SOON_DAYS:
        past = "has expired" if left < 0 else f"expires in {left} days"
        trouble = f"it {past}: renew it (postbus cert, if that made it)"
    elif certificate.key_exposed:
        trouble = f"everybody on this machine can read its key: chmod 600 {files.key}"
    fact = f"{files.certificate}, valid until {certificate.until:%Y-%m-%d}, for "
    return Finding("tls", fact + (", ".join(certificate.names) or "no name"), trouble)


def _data(folder: Path) -> Iterator[Finding]:
    place = folder if folder.exists() else folder.absolute().parent
    if not (place.is_dir() and os.access(place, os.W_OK)):
        yield Finding("data", str(folder), f"{place} is not a folder that can be written to")
        return
    yield Finding("data", str(folder) if folder.exists() else f"{folder}, not made yet")
    state = os.statvfs(place)
    free = state.f_bavail * state.f_frsize
    yield Finding(
        "free space",
        f"{free / (1 << 30):.1f} GiB",
        "" if free >= FREE_BYTES_MIN else "a full disk takes no new messages",
    )
    elapsed_ms = _sync_ms(place)
    yield Finding(
        "sync",
        f"{elapsed_ms:.2f} ms for {SYNC_BYTES} bytes",
        "" if elapsed_ms < SYNC_SLOW_MS else "every commit waits that long: use a faster disk",
    )


def _sync_ms(place: Path) -> float:
    """The least time that a commit waits for the disk."""
    times = []
    with TemporaryFile(dir=place) as file:
        for _ in range(SYNCS):
            file.write(bytes(SYNC_BYTES))
            file.flush()
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(1_000 * (time.perf_counter() - started))
    return median(times)
