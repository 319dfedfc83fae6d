"""The official JavaScript SDK: each test of node/*.test.mjs is run and reported by itself.

The tests are written for Node's own runner and can be run with it directly:

    POSTBUS_CONNECTION_STRING='Endpoint=…' NODE_EXTRA_CA_CERTS=…/tls/ca.pem \\
        node --test tests/conformance/node/
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.carriers import local_ca
from tests.support.server import Server

HERE = Path(__file__).parent / "node"
NODE = Path(sys.executable).with_name("node")


def listed(file: Path) -> list[str]:
    """The names of a file's tests: literal ones, and those that a table in the file spells out."""
    source = file.read_text()
    names = re.findall(r'^test\("([^"]+)"', source, re.MULTILINE)
    for block in re.finditer(
        r"^for \(const \[(\w+)[^\]]*\] of (\[.*?^\])\) \{\n  test\(`([^`]+)`", source, re.M | re.S
    ):
        variable, table, pattern = block.groups()
        rows = re.findall(r'^  \["([^"]+)"', table, re.MULTILINE)
        names += [pattern.replace("${" + variable + "}", row) for row in rows]
    return names


BOTH_KINDS = ("receive.test.mjs",)
"""Run on partitioned queues too: this SDK drains its links, and closes one that is not drained."""
CASES = [
    (file.name, name, kind)
    for file in sorted(HERE.glob("*.test.mjs"))
    for name in listed(file)
    for kind in (("classic", "partitioned") if file.name in BOTH_KINDS else ("classic",))
]


@pytest.mark.parametrize(
    ("file", "name", "kind"), CASES, ids=[f"{f}: {n} {k}" for f, n, k in CASES]
)
def test_node(server: Server, file: str, name: str, kind: str) -> None:
    done = subprocess.run(
        [
            str(NODE),
            "--test-reporter=tap",
            "--test-force-exit",  # a failed test may leave timers of the SDK behind
            f"--test-name-pattern=^{re.escape(name)}$",
            str(HERE / file),
        ],
        env={
            **os.environ,
            "POSTBUS_CONNECTION_STRING": server.connection_string,
            "POSTBUS_TEST_KIND": kind,
            "NODE_EXTRA_CA_CERTS": str(local_ca(server)),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "# pass 1" in done.stdout, done.stdout


def test_every_node_test_is_listed() -> None:
    """No test is left out because it is written in a way that `listed` does not see."""
    for file in HERE.glob("*.test.mjs"):
        written = len(re.findall(r"^ *test\(", file.read_text(), re.MULTILINE))
        tables = len(re.findall(r"^  test\(`", file.read_text(), re.MULTILINE))
        literal = len(re.findall(r'^test\("', file.read_text(), re.MULTILINE))
        assert written == tables + literal, file.name
        assert len(listed(file)) >= written, file.name
