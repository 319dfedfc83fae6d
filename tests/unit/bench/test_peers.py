"""How receivers settle with each broker, and what is said of a broker that is not here."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import brokers
from bench.artemis import Artemis
from bench.brokers import BrokerMissing, Compiled, Postbus, inherited
from bench.rabbitmq import RabbitMQ
from bench.run import obtained
from bench.work import Generator

NEUTRAL = Path("load")


@pytest.mark.parametrize(
    ("kind", "neutral", "at_once", "told"),
    [
        (Postbus, None, False, "mode second, confirmed"),
        (Postbus, NEUTRAL, False, "mode second, confirmed"),
        (Postbus, NEUTRAL, True, "at once, unconfirmed"),
        (RabbitMQ, None, False, "mode first, confirmed; refuses mode second"),
        (RabbitMQ, NEUTRAL, False, "at once, unconfirmed; refuses mode second"),
        (Artemis, None, False, "at once, unconfirmed; takes mode second and never settles"),
        (Artemis, NEUTRAL, False, "at once, unconfirmed; takes mode second and never settles"),
    ],
)
def test_the_table_says_how_receivers_settle(
    kind: type[brokers.Broker], neutral: Path | None, at_once: bool, told: str
) -> None:
    # Making a broker would look for ports and write files: only what its class says is asked for.
    assert Generator(neutral, at_once, 1).settlement(object.__new__(kind)) == told


def test_a_broker_that_is_not_here_is_left_out_by_name_and_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("bench.rabbitmq._DEBIAN", tmp_path)
    monkeypatch.setattr("bench.brokers._COMPILED", tmp_path)
    made, missing = obtained("compiled,artemis,rabbitmq,postbus", tmp_path, ["orders"])
    assert [broker.name for broker in made] == ["Postbus"]
    assert missing == {
        "Postbus compiled": "there is no build/compiled: make compile",
        "Artemis": "java is not installed",
        "RabbitMQ": "rabbitmq-server is not installed",
    }
    assert "Artemis is left out: java is not installed" in capsys.readouterr().out


def test_artemis_is_missing_where_maven_cannot_fetch_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, line in (("java", "exit 0"), ("mvn", "echo no such host; exit 1")):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("bench.artemis._KEPT", tmp_path / "artemis")
    with pytest.raises(BrokerMissing, match="no such host"):
        Artemis.obtain()


def test_the_compiled_build_is_obtained_where_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.brokers._COMPILED", tmp_path)
    (tmp_path / ".ready").touch()
    assert Compiled.obtain() == tmp_path


def test_a_peer_does_not_inherit_what_would_steer_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RABBITMQ_NODENAME", "elsewhere")
    monkeypatch.setenv("KEPT", "1")
    kept = inherited("RABBITMQ_")
    assert "RABBITMQ_NODENAME" not in kept
    assert kept["KEPT"] == "1"
