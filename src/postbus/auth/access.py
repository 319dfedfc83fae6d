"""Puts together who is trusted, from the settings, the key file and the file of entities."""

from collections.abc import Callable, Iterable
from socket import gethostname
from typing import TYPE_CHECKING

from postbus.auth.authority import Authority
from postbus.auth.hostnames import HostNames
from postbus.auth.keyring import AccessKey
from postbus.auth.namespace_key import NamespaceKey
from postbus.model.authorization import Rules
from postbus.model.instant import Instant
from postbus.settings import Settings

if TYPE_CHECKING:
    from postbus.auth.jwt import Issuer


def namespace_keys(key: NamespaceKey, rules: Rules) -> list[AccessKey]:
    """The keys of the whole namespace: the one that is always there, and the operator's own."""
    root = AccessKey(key.name, (key.value, key.secondary) if key.secondary else (key.value,))
    return [root, *map(AccessKey.of, rules)]


class Access:
    """The authority of a process, and what has to be opened and closed for it."""

    def __init__(
        self,
        settings: Settings,
        key: NamespaceKey,
        rules: Rules,
        clock: Callable[[], Instant],
        certified: Callable[[], Iterable[str]],
    ) -> None:
        """`certified` gives the names in the certificate that is in use."""
        self._issuer = _issuer(settings, clock)
        own = (settings.host, settings.namespace_name, gethostname())
        hosts = HostNames(own, certified)
        self.authority = Authority(namespace_keys(key, rules), self._issuer, hosts)

    def open(self) -> None:
        """Raises KeyFileError where the issuer's keys are in a file that cannot be used."""
        if self._issuer is not None:
            self._issuer.keys.open()

    def close(self) -> None:
        if self._issuer is not None:
            self._issuer.keys.close()


def _issuer(settings: Settings, clock: Callable[[], Instant]) -> "Issuer | None":
    name, audience, source = settings.jwt_issuer, settings.jwt_audience, settings.jwt_jwks
    if name is None or audience is None or source is None:
        return None
    # Here, because the library takes 150 ms of a start, and most start without an issuer.
    from postbus.auth.jwks import SigningKeys
    from postbus.auth.jwt import Issuer

    return Issuer(name, audience, settings.jwt_roles_claim, SigningKeys(source, clock))
