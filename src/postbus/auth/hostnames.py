"""Names by which clients reach this broker, as far as it can know them by itself.

Some tokens are made for a bare host name, as in the connection strings that Go signs. Without a
scheme nothing else tells such a name from that of an entity. What a client says of the host it has
reached does not count: a token for an entity must not open the namespace by that.
"""

from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import Final

AZURE: Final = (
    ".servicebus.windows.net",
    ".servicebus.chinacloudapi.cn",
    ".servicebus.usgovcloudapi.net",
)
"""Where the SDKs look for a namespace; a hosts file may send them here."""

_ALWAYS: Final = frozenset({"localhost"})


class HostNames:
    """A container of host names, without regard to case."""

    __slots__ = ("_certified", "_own")

    def __init__(
        self, own: Iterable[str] = (), certified: Callable[[], Iterable[str]] = tuple
    ) -> None:
        """`certified` gives the names in the certificate that is in use, in small letters."""
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
    """Is it one of the names that `*.example.net` stands for?"""
    return pattern.startswith("*.") and name.partition(".")[2] == pattern[2:]
