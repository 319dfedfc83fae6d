"""Every setting, declared once.

One declaration makes the flag (`--frame-size-max-bytes`) and the variable
(`POSTBUS_FRAME_SIZE_MAX_BYTES`). It also makes the key in the `[settings]` table of the TOML file,
and the row in docs/settings.md. The flag wins, then the variable, then the file of `--config`. A
name ends in its unit; a name that ends in `_max` alone is a count.
"""

import ipaddress
import os
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

PREFIX: Final = "POSTBUS_"
TABLE: Final = "settings"
CONNECTION_STRING: Final = f"{PREFIX}CONNECTION_STRING"
PAIR: Final = f"{PREFIX}PRIMARY", f"{PREFIX}SECONDARY"
"""Not settings of a broker: they tell client commands where the brokers are."""
MADE_CERTIFICATE: Final = Path("tls/server.pem")
"""In the data folder: the files that `postbus cert` makes and `serve` uses by default."""


class SettingsError(Exception):
    """One or more settings are wrong. Each problem names the setting and where it was given."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def _setting(default: object, description: str, **bounds: Any) -> Any:
    return Field(default, description=description, **bounds)


class Settings(BaseSettings):
    """The settings of a broker process. Read them with `Settings.load`."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, validate_default=True
    )

    # Where it listens
    host: str = _setting("127.0.0.1", "Address to listen on")
    port: int = _setting(
        5672, "Port for AMQP and HTTP together; 0 picks a free one", ge=0, le=65_535
    )
    admin_port: int = _setting(
        5300,
        "Second port for the same, where users of Microsoft's emulator expect administration; "
        "0 switches it off",
        ge=0,
        le=65_535,
    )
    tls_certificate: Path | None = _setting(
        None,
        "PEM file with the certificate for TLS and those between it and its root; without it, the "
        "one that `postbus cert` has made in the data folder",
    )
    tls_key: Path | None = _setting(None, "PEM file with the private key of that certificate")
    allow_plaintext: bool = _setting(
        False, "Take connections from other machines although they are not encrypted"
    )

    # What it keeps, and where
    data: Path = _setting(Path("./postbus-data"), "Data folder; created when it is not there")
    ephemeral: bool = _setting(False, "Keep everything in memory; a restart forgets it")
    config: Path | None = _setting(
        None, "Entities and settings to start with: a TOML file, or the emulator's Config.json"
    )
    queue: Annotated[tuple[str, ...], NoDecode] = _setting(
        (), "Queue to create at the start unless it exists; repeatable"
    )
    topic: Annotated[tuple[str, ...], NoDecode] = _setting(
        (),
        "Topic to create at the start unless it exists, with a subscription behind a slash "
        "(`news/audit`); repeatable",
    )
    retention_hours: int = _setting(
        24, "How long the journal of an entity is kept after its messages are gone", ge=0, le=87_600
    )
    retention_mb: int = _setting(
        1_024, "How large that kept journal may be, for each entity", ge=0, le=1_048_576
    )

    disk_reserve_mb: int = _setting(
        64,
        "Disk space set aside, so that messages can be settled when the disk is full; at most an "
        "eighth of the disk; 0 sets nothing aside",
        ge=0,
        le=65_536,
    )

    # The namespace
    namespace_name: str = _setting(
        "sbemulatorns", "Name of the namespace in replies and tracking ids", min_length=1
    )
    default_lock_duration_ms: int = _setting(
        30_000, "Lock of a received message where its queue says nothing", ge=5_000, le=300_000
    )
    message_size_max_kb: int = _setting(
        256,
        "Largest message, with all its properties, of an entity that is created without a size",
        ge=1,
        le=102_400,
    )
    header_size_max_bytes: int = _setting(
        65_536,
        "Largest sum of a message's headers and properties. More than 65,536 bytes may have 32,768 "
        "names and values",
        ge=1_024,
        le=1_048_576,
    )
    property_size_max_bytes: int = _setting(
        32_768, "Largest single property of a message", ge=256, le=1_048_576
    )
    entities_max: int = _setting(10_000, "Entities in the namespace", ge=1, le=1_000_000)

    # Who may use it, besides the holders of its keys
    jwt_issuer: str | None = _setting(
        None, "Issuer whose JSON Web Tokens are accepted: the value of their claim `iss`"
    )
    jwt_audience: str | None = _setting(None, "What their claim `aud` must name")
    jwt_jwks: str | None = _setting(
        None, "Where the keys of the issuer are, as a JWK Set: an https URL or a file"
    )
    jwt_roles_claim: str = _setting(
        "roles", "Claim that says what a token allows", min_length=1, max_length=256
    )

    # What one peer may take: connections
    connections_max: int = _setting(
        5_000, "Open connections, AMQP and HTTP together", ge=1, le=1_000_000
    )
    first_bytes_timeout_ms: int = _setting(
        10_000,
        "A new connection that sends nothing, or is not done with its TLS handshake, is dropped "
        "after this",
        ge=100,
        le=600_000,
    )
    authentication_timeout_ms: int = _setting(
        20_000, "An AMQP connection without a valid token is dropped after this", ge=100, le=600_000
    )
    idle_timeout_ms: int = _setting(
        240_000,
        "An AMQP peer that sends nothing is asked for a sign of life within this",
        ge=1_000,
        le=3_600_000,
    )
    frame_size_max_bytes: int = _setting(
        65_536,
        "Largest AMQP frame accepted; 64 KB at most before its sender has shown a token",
        ge=512,
        le=1_048_576,
    )
    unfinished_delivery_timeout_ms: int = _setting(
        120_000,
        "A message of several frames must be whole this long after its first one, or after each "
        "megabyte that it has brought",
        ge=100,
        le=86_400_000,
    )
    sessions_per_connection_max: int = _setting(
        256, "AMQP sessions on one connection", ge=1, le=65_536
    )
    links_per_connection_max: int = _setting(
        5_000, "Links on one connection, over all its sessions", ge=1, le=1_000_000
    )
    link_credit_max: int = _setting(
        1_000, "Messages a client may send on one link ahead of their settlement", ge=1, le=100_000
    )
    incoming_unsettled_max: int = _setting(
        5_000,
        "Sends of one connection not yet settled, past which it is not read",
        ge=1,
        le=1_000_000,
    )
    outgoing_unsettled_max: int = _setting(
        2_048,
        "Deliveries on one AMQP session not yet settled; the Node SDK breaks past 2048",
        ge=1,
        le=2_048,
    )
    transactions_per_connection_max: int = _setting(
        1_000, "Transactions on one connection that are not discharged yet", ge=1, le=100_000
    )
    transactions_max_bytes: int = _setting(
        67_108_864,
        "Messages sent in the transactions of one connection that are not discharged yet, and"
        " changes of properties",
        ge=1_024,
        le=1_073_741_824,
    )
    all_transactions_max_bytes: int = _setting(
        268_435_456,
        "The same of all connections together; whoever asks for more is told to try again",
        ge=1_024,
        le=17_179_869_184,
    )
    transaction_timeout_ms: int = _setting(
        120_000,
        "A transaction is rolled back when this has passed since its first operation",
        ge=100,
        le=3_600_000,
    )
    write_buffer_max_bytes: int = _setting(
        1_048_576,
        "Bytes waiting for a connection that does not read, past which it gets no more",
        ge=65_536,
        le=1_073_741_824,
    )

    # What all peers together may take
    strangers_max_bytes: int = _setting(
        67_108_864,
        "Kept for connections that have shown no token, all together; past it those are closed "
        "that have held the most for the longest, until an eighth of it is free",
        ge=1_048_576,
        le=17_179_869_184,
    )
    unfinished_max_bytes: int = _setting(
        268_435_456,
        "Messages, frames and requests that are not whole, of all other connections; past it the "
        "same happens",
        ge=1_048_576,
        le=17_179_869_184,
    )
    replies_max_bytes: int = _setting(
        268_435_456,
        "Answers and messages that wait for such connections to take them; past it the same "
        "happens",
        ge=1_048_576,
        le=17_179_869_184,
    )

    # What one peer may take: HTTP
    http_header_max_bytes: int = _setting(
        65_536, "All of an HTTP request that is not its body", ge=1_024, le=1_048_576
    )
    http_body_max_bytes: int = _setting(
        1_048_576,
        "Body of an HTTP request; that of a message may be as large as a message, and that of a "
        "request about dead letters 4 MB",
        ge=1_024,
        le=1_073_741_824,
    )
    http_request_timeout_ms: int = _setting(
        30_000,
        "Time for an HTTP request to arrive whole or to bring another megabyte, and for its reply "
        "to be taken",
        ge=100,
        le=3_600_000,
    )
    http_keep_alive_timeout_ms: int = _setting(
        60_000,
        "An HTTP connection between two requests is closed after this",
        ge=100,
        le=3_600_000,
    )

    http_receive_timeout_max_ms: int = _setting(
        240_000, "Longest wait of a receive over HTTP", ge=0, le=3_600_000
    )
    websocket_frame_max_bytes: int = _setting(
        1_048_576,
        "Largest WebSocket frame accepted; 64 KB at most before its sender has shown a token",
        ge=65_536,
        le=104_857_600,
    )

    # Message sessions
    session_wait_max_ms: int = _setting(
        300_000, "Longest wait of a receiver for the next session", ge=0, le=3_600_000
    )
    session_waits_max: int = _setting(
        5_000, "Receivers of one entity that wait for its next session", ge=1, le=1_000_000
    )

    # Memory
    windows_max_bytes: int = _setting(
        134_217_728,
        "Memory for waiting messages of all entities together; a quarter of it is for changes that "
        "the index does not have yet",
        ge=1_048_576,
        le=1_099_511_627_776,
    )

    duplicate_filter_kb: int = _setting(
        8_192,
        "Memory of an entity for telling ids that it has not seen, where it finds duplicates: 4 "
        "bytes for each id in its window are plenty, and with less it reads more often",
        ge=64,
        le=1_048_576,
    )
    loaded_entities_max: int = _setting(
        1_000,
        "Entities held in memory at a time; more are only while that many are in use",
        ge=1,
        le=1_000_000,
    )
    idle_entity_timeout_ms: int = _setting(
        60_000,
        "An entity that nobody uses is not held in memory after this",
        ge=1_000,
        le=86_400_000,
    )

    # Running it
    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "info", "Least severe log lines to write"
    )
    log_format: Literal["console", "json"] = _setting(
        "console", "Log lines for people or for programs"
    )
    clock_behind_max_ms: int = _setting(
        86_400_000,
        "How far the clock may be behind the latest time in the data folder for a start",
        ge=1_000,
        le=4_000_000_000_000,
    )
    shutdown_grace_ms: int = _setting(
        10_000, "Time for work in hand when told to stop", ge=0, le=600_000
    )

    @classmethod
    def load(cls, flags: Mapping[str, object] | None = None) -> Self:
        """Read all sources; `flags` holds what was given on the command line, by setting name."""
        given: dict[str, Any] = dict(flags or {})
        try:
            return cls(**given)
        except ValidationError as error:
            raise SettingsError([_problem(item, given) for item in error.errors()]) from None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        path = init_settings().get("config") or env_settings().get("config")
        table = read_table(Path(path)) if path else {}
        return init_settings, env_settings, InitSettingsSource(settings_cls, table)

    @field_validator("queue", "topic", mode="before")
    @classmethod
    def _list_in_one_text(cls, names: object) -> object:
        """A variable holds several names with commas or spaces between them."""
        return names.replace(",", " ").split() if isinstance(names, str) else names

    @field_validator("host")
    @classmethod
    def _without_brackets(cls, host: str) -> str:
        return host.removeprefix("[").removesuffix("]")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise PydanticCustomError(
                "half_tls", "tls_certificate and tls_key go together: both or neither"
            )
        if not is_loopback(self.host) and not self.allow_plaintext and not self._has_certificate:
            raise PydanticCustomError(
                "plaintext",
                "host {host} can be reached from other machines and nothing is encrypted: "
                "make a certificate (postbus cert), or add --allow-plaintext if that is meant",
                {"host": self.host},
            )
        if self.port and self.port == self.admin_port:
            raise PydanticCustomError(
                "same_port",
                "port and admin_port are both {port}: each serves everything, so one is enough "
                "(--admin-port 0)",
                {"port": self.port},
            )
        return self

    @field_validator("jwt_jwks")
    @classmethod
    def _from_where_keys_can_be_trusted(cls, source: str | None) -> str | None:
        scheme, separator, rest = (source or "").partition("://")
        if not separator or scheme.lower() == "https":
            return source
        # Over plain http, anybody on the way could insert keys.
        if scheme.lower() == "http" and is_loopback(urlsplit(f"//{rest}").hostname or ""):
            return source
        raise PydanticCustomError(
            "jwks_url", "must be an https URL (http only on this machine) or the path of a file"
        )

    @model_validator(mode="after")
    def _an_issuer_is_named_whole(self) -> Self:
        given = {name: getattr(self, name) for name in ("jwt_issuer", "jwt_audience", "jwt_jwks")}
        missing = [name for name, value in given.items() if not value]
        if missing and len(missing) < len(given):
            raise PydanticCustomError(
                "half_an_issuer",
                "tokens of an issuer need all of jwt_issuer, jwt_audience and jwt_jwks: "
                "{missing} is missing",
                {"missing": ", ".join(missing)},
            )
        return self

    @property
    def _has_certificate(self) -> bool:
        if self.tls_certificate is not None:
            return True
        return not self.ephemeral and (self.data / MADE_CERTIFICATE).exists()

    @property
    def on_loopback(self) -> bool:
        """Only programs on this machine can connect."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Is this address reachable from this machine only? A name is not looked up."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    return PREFIX + name.upper()


def declared() -> dict[str, FieldInfo]:
    """All settings by name, in the order of their declaration."""
    return dict(Settings.model_fields)


def unknown_variables() -> list[str]:
    """Variables that look like settings and are none: probably misspelled, so worth a warning."""
    known = {variable_of(name) for name in Settings.model_fields} | {CONNECTION_STRING, *PAIR}
    return sorted(key for key in os.environ if key.startswith(PREFIX) and key.upper() not in known)


def read_table(path: Path) -> dict[str, object]:
    """The `[settings]` table of a TOML file; the emulator's Config.json has none."""
    try:
        text = path.read_text("utf-8-sig")
        if path.suffix.lower() == ".json" or text.lstrip().startswith("{"):
            return {}
        table = tomllib.loads(text).get(TABLE, {})
    except OSError as error:
        raise SettingsError([f"config: {path}: {error.strerror}"]) from error
    except (ValueError, RecursionError) as error:
        raise SettingsError([f"config: {path} is not TOML: {error}"]) from error
    if not isinstance(table, dict):
        raise SettingsError([f"config: {path}: [{TABLE}] must be a table"])
    if "config" in table:
        raise SettingsError([f"config: {path}: [{TABLE}] cannot name the file it is in (config)"])
    return table


def _problem(error: ErrorDetails, flags: Mapping[str, object]) -> str:
    """One finding of the validation, with the place where the value was given."""
    if not error["loc"]:
        return error["msg"]
    name = str(error["loc"][0])
    path = flags.get("config") or os.environ.get(variable_of("config"))
    if error["type"] == "extra_forbidden":
        # pydantic-settings ignores variables it does not know, so this one is from the file.
        likely = get_close_matches(name, Settings.model_fields, n=1)
        hint = f"; did you mean {likely[0]}?" if likely else ""
        return f"{path}: [{TABLE}] {name}: there is no such setting{hint}"
    return f"{_place(name, flags, path)}: {error['msg']}, not {error['input']!r}"


def _place(name: str, flags: Mapping[str, object], path: object) -> str:
    if name in flags:
        return flag_of(name)
    if any(variable.upper() == variable_of(name) for variable in os.environ):
        return variable_of(name)
    return f"{path}: [{TABLE}] {name}"
