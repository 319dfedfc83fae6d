"""The authority of a process, built from the settings, the key file and the file of entities."""

from collections.abc import Callable, Iterable
from ipaddress import ip_address
from socket import gethostname
from typing import TYPE_CHECKING, Final

from postbus.auth.authority import Authority
from postbus.auth.keyring import AccessKey
from postbus.auth.namespace_key import NamespaceKey
from postbus.model.authorization import Rules
from postbus.model.times import Instant
from postbus.settings import Settings

if TYPE_CHECKING:
    from postbus.auth.jwt import Issuer


def namespace_keys(key: NamespaceKey, rules: Rules) -> list[AccessKey]:
    """The keys of the whole namespace: the permanent one, and the operator's own."""
    root = AccessKey(key.name, (key.value, key.secondary) if key.secondary else (key.value,))
    return [root, *map(AccessKey.of, rules)]


class Access:
    """The authority of a process, and the resources to open and close with it."""

    def __init__(
        self,
        settings: Settings,
        key: NamespaceKey,
        rules: Rules,
        clock: Callable[[], Instant],
        certified: Callable[[], Iterable[str]],
    ) -> None:
        """`certified` gives the names in the current certificate."""
        self._issuer = _issuer(settings, clock)
        own = (settings.host, settings.namespace_name, gethostname())
        hosts = HostNames(own, certified)
        self.authority = Authority(namespace_keys(key, rules), self._issuer, hosts)

    def open(self) -> None:
        """Raises KeyFileError for an unusable file of the issuer's keys."""
        if self._issuer is not None:
            self._issuer.keys.open()

    def close(self) -> None:
        if self._issuer is not None:
            self._issuer.keys.close()


def _issuer(settings: Settings, clock: Callable[[], Instant]) -> "Issuer | None":
    name, audience, source = settings.jwt_issuer, settings.jwt_audience, settings.jwt_jwks
    if name is None or audience is None or source is None:
        return None
    # Imported here: the library costs a start 150 ms, and most servers have no issuer.
    from postbus.auth.jwks import SigningKeys
    from postbus.auth.jwt import Issuer

    return Issuer(name, audience, settings.jwt_roles_claim, SigningKeys(source, clock))


AZURE: Final = (
    ".servicebus.windows.net",
    ".servicebus.chinacloudapi.cn",
    ".servicebus.usgovcloudapi.net",
)
"""Where the SDKs look for a namespace; a hosts file may send them here."""

_ALWAYS: Final = frozenset({"localhost"})


class HostNames:
    """The names by which clients reach this broker, as far as the broker can know them.

    Some tokens are made for a bare host name, as in the connection strings that Go signs. Without a
    scheme, only this set tells a host name from the name of an entity. The host name in a client's
    request does not count: otherwise a token for an entity could open the namespace.
    """

    __slots__ = ("_certified", "_own")

    def __init__(
        self, own: Iterable[str] = (), certified: Callable[[], Iterable[str]] = tuple
    ) -> None:
        """`certified` gives the names in the current certificate, in small letters."""
        self._own = _ALWAYS | {name.lower() for name in own}
        self._certified = certified

    def __contains__(self, text: object) -> bool:
        name = str(text).lower().removesuffix(".")
        return (
            name in self._own
            or name.endswith(AZURE)
            or _is_address(name)
            or any(name == each or _is_under(name, each) for each in self._certified())
        )


def _is_address(name: str) -> bool:
    try:
        ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _is_under(name: str, pattern: str) -> bool:
    """Does `*.example.net` stand for this name?"""
    return pattern.startswith("*.") and name.partition(".")[2] == pattern[2:]
