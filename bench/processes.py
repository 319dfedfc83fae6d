"""What the kernel says about processes and the machine: CPU time, memory, and what they run on."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PROBES = 40
# Long enough for ticks of 10 ms to add up.
_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds a process and its children have used so far, and what they hold in memory."""

    cpu_s: float
    resident_mb: float


def usage_of(pid: int) -> Usage:
    """Sum up a process and all that descend from it; gone ones count nothing."""
    children: dict[int, list[int]] = {}
    cpu: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(entry)):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            cpu[int(entry.name)] = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    cpu_s = resident_mb = 0.0
    family = [pid]
    while family:
        member = family.pop()
        family += children.get(member, [])
        cpu_s += cpu.get(member, 0.0)
        resident_mb += _resident_mb(member)
    return Usage(cpu_s, resident_mb)


def _stat(entry: Path) -> list[str]:
    """The fields of /proc/PID/stat from the state on: a name before it may hold anything."""
    try:
        return (entry / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _resident_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


@dataclass(frozen=True, slots=True)
class Memory:
    """What one process holds in memory now, and what it held at the most since it started."""

    resident_mb: float
    peak_mb: float


def memory_of(pid: int) -> Memory:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kb = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith("Vm")}
    return Memory(kb["VmRSS"] / 1024, kb["VmHWM"] / 1024)


def machine_cpu_s() -> float:
    """CPU seconds in which the machine was busy, whoever with."""
    numbers = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _waiting, irq, softirq, steal = numbers
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_S


def wait_until_quiet(share: float, within_s: float) -> bool:
    """Wait until the machine is busy with less than that share of a core; say whether it was."""
    deadline = time.monotonic() + within_s
    while True:
        began, busy_s = time.monotonic(), machine_cpu_s()
        time.sleep(_LOOK_S)
        if machine_cpu_s() - busy_s < share * (time.monotonic() - began):
            return True
        if time.monotonic() >= deadline:
            return False


def machine(folder: Path) -> dict[str, str]:
    """What the numbers were measured on, in words."""
    memory_kb = int(Path("/proc/meminfo").read_text().split()[1])
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "processor": model,
        "memory": f"{memory_kb / 1024 / 1024:.0f} GB",
        "kernel": f"{platform.system()} {platform.release()}",
        "disk": disk_of(folder),
        "sync_ms": f"{sync_ms(folder):.2f}",
    }


def disk_of(folder: Path) -> str:
    """File system and device under a folder."""
    at = folder.resolve()
    best = ("", "", "unknown")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        device, mounted, kind = line.split()[:3]
        if at.is_relative_to(mounted) and len(mounted) >= len(best[0]):
            best = (mounted, device, kind)
    name = Path(best[1]).name
    kinds = {"vd": "virtual disk", "nvme": "NVMe", "sd": "SCSI or SATA disk", "xvd": "virtual disk"}
    what = next((text for start, text in kinds.items() if name.startswith(start)), "device")
    return f"{best[2]} on {name} ({what})"


def sync_ms(folder: Path) -> float:
    """Median time to append 4 KB and have it on the disk: what every durable answer waits for."""
    path = folder / "sync-probe"
    times = []
    with path.open("wb", buffering=0) as file:
        for _ in range(_PROBES):
            began = time.monotonic()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            times.append(time.monotonic() - began)
    path.unlink()
    return median(times) * 1000
