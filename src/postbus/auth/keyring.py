"""The keys of the namespace and of its entities, and the search for the key of a signature. Pure.

Key names compare without regard to case, as .NET compares two rules. The keys themselves compare to
the last character, in a time that does not depend on the matching characters.
"""

import hmac
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, NamedTuple

from postbus.model.authorization import ALL_RIGHTS, AuthorizationRule, Right

NAMESPACE: Final = ""
"""The owner of the keys that open everything; entities have names."""

# Compared with where no key has the given name, so that the answer takes as long.
_NOBODYS_KEYS: Final = ("no key has this name", "nor this one")


@dataclass(frozen=True, slots=True)
class AccessKey:
    """A named key; the second value serves while the first is being replaced."""

    name: str
    keys: tuple[str, ...]
    rights: Right = ALL_RIGHTS

    @classmethod
    def of(cls, rule: AuthorizationRule) -> "AccessKey":
        return cls(rule.key_name, rule.keys, rule.granted)

    @property
    def granted(self) -> Right:
        """Manage includes the other two (semantics A §5.2)."""
        return ALL_RIGHTS if Right.MANAGE in self.rights else self.rights


class Mark(NamedTuple):
    """The value of a key that proved something, as a digest."""

    owner: str
    """The entity whose key it is, in small letters; empty for the namespace."""
    name: str
    digest: bytes


class KeyRing:
    """Keys by owner and name. The owner of a key is an entity, or the namespace."""

    __slots__ = ("_by_value", "_keys")

    def __init__(self) -> None:
        self._keys: dict[str, dict[str, AccessKey]] = {NAMESPACE: {}}
        self._by_value: dict[bytes, list[Mark]] = {}

    def learn(self, owner: str, keys: Iterable[AccessKey]) -> bool:
        """Set the owner's keys. Returns whether that takes a right away."""
        owner = owner.lower()
        before = self._keys.get(owner, {})
        after = {key.name.lower(): key for key in keys}
        self._keys[owner] = after
        self._index(before, after, owner)
        return any(
            name not in after
            or not set(key.keys) <= set(after[name].keys)
            or key.granted not in after[name].granted
            for name, key in before.items()
        )

    def forget(self, owner: str) -> bool:
        """The entity is gone, and its keys with it. Returns whether it had any."""
        owner = owner.lower()
        before = self._keys.pop(owner, {})
        self._index(before, {}, owner)
        return bool(before)

    def knows(self, owner: str) -> bool:
        return owner.lower() in self._keys

    def owner_of(self, path: str) -> str:
        """The entity that a path in small letters leads to or into; otherwise the namespace."""
        while path and path not in self._keys:
            path = path.rpartition("/")[0]
        return path

    def signer(
        self, owner: str, names: Iterable[str], is_signed_by: Callable[[str], bool]
    ) -> tuple[AccessKey, Mark] | None:
        """The key that made a signature: the owner's, or else the namespace's.

        Where keys are missing, as many others are tried, so that the time is the same.
        """
        names = [name.lower() for name in names]
        owners = (owner, NAMESPACE)
        found = [
            (key, Mark(each, key.name.lower(), digest_of(value)))
            for each in owners
            for key, value in self._candidates(each, names)
            if is_signed_by(value) and key is not None
        ]
        return found[0] if found else None

    def holders(self, name: str, value: str) -> list[tuple[AccessKey, Mark]]:
        """All keys of this name and value; several entities may have the same key."""
        given = value.encode("utf-8", "surrogatepass")
        marks = self._by_value.get(_place(name.lower(), digest_of(value)), [])
        found = [(self._keys[mark.owner][mark.name], mark) for mark in marks]
        # The look-up by digest takes a time that reveals nothing of the value. The values are then
        # compared once more.
        values = [each for key, _ in found for each in key.keys] or list(_NOBODYS_KEYS)
        matches = [hmac.compare_digest(each.encode(), given) for each in values]
        return found if any(matches) else []

    def still_grants(self, mark: Mark) -> Right:
        """The rights that the key of a mark gives now; none if the key or that value is gone."""
        key = self._keys.get(mark.owner, {}).get(mark.name)
        if key is None or mark.digest not in map(digest_of, key.keys):
            return Right(0)
        return key.granted

    def _candidates(self, owner: str, names: list[str]) -> Iterator[tuple[AccessKey | None, str]]:
        keys = self._keys.get(owner, {})
        key = next((keys[name] for name in names if name in keys), None)
        values = key.keys if key is not None else ()
        for value in values:
            yield key, value
        for value in _NOBODYS_KEYS[len(values) :]:
            yield None, value

    def _index(self, before: dict[str, AccessKey], after: dict[str, AccessKey], owner: str) -> None:
        for place, mark in _places(before, owner):
            self._by_value[place].remove(mark)
            if not self._by_value[place]:
                del self._by_value[place]
        for place, mark in _places(after, owner):
            self._by_value.setdefault(place, []).append(mark)


def digest_of(value: str) -> bytes:
    return sha256(value.encode("utf-8", "surrogatepass")).digest()


def _place(name: str, digest: bytes) -> bytes:
    return sha256(name.encode("utf-8", "surrogatepass") + b"\0" + digest).digest()


def _places(keys: dict[str, AccessKey], owner: str) -> Iterator[tuple[bytes, Mark]]:
    for name, key in keys.items():
        # As a set: both values of a key may be the same, as in the SDK's own test suite.
        for value in sorted(set(key.keys)):
            digest = digest_of(value)
            yield _place(name, digest), Mark(owner, name, digest)
