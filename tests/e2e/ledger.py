"""What clients know about their messages, and what must be true of them after many crashes.

The rules, for every message (by its id):
- sent and acknowledged, and no removal confirmed or in doubt: it is there exactly once;
- a send without an answer: there at most once, and a batch wholly or not at all;
- removal confirmed: never seen again, neither delivered nor there at the end;
- moved (deferred, dead-lettered, scheduled) and confirmed: in that place, exactly once;
- no message has two holders at a time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum


class Place(Enum):
    ACTIVE = "active"
    DEFERRED = "deferred"
    SCHEDULED = "scheduled"
    DEAD = "dead-lettered"
    GONE = "gone"


@dataclass
class Ledger:
    """Written while clients work, read at the end. `faults` are found on the way."""

    places: dict[str, set[Place]] = field(default_factory=dict)
    batches: dict[str, tuple[str, ...]] = field(default_factory=dict)
    delivered: set[str] = field(default_factory=set)
    acknowledged: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    _holders: dict[str, tuple[int, str]] = field(default_factory=dict)

    def sending(self, ids: tuple[str, ...], to: Place = Place.ACTIVE) -> None:
        for name in ids:
            self.places[name] = {Place.GONE, to}
            self.batches[name] = ids

    def sent(self, ids: tuple[str, ...]) -> None:
        self.answers["sends acknowledged"] += len(ids)
        for name in ids:
            self.places[name].discard(Place.GONE)
            self.acknowledged.add(name)

    def deliver(self, name: str, life: int, holder: str) -> None:
        """A receiver got this message, in this life of the server."""
        self.delivered.add(name)
        places = self.places.get(name)
        if places is None:
            self.faults.append(f"{name}: delivered, but nobody sent it")
        elif Place.ACTIVE not in places:
            self.faults.append(f"{name}: delivered, but it is {_words(places)}")
        else:
            # seen, so the send took effect, and an earlier verdict in doubt did not
            self.places[name] = {Place.ACTIVE}
        held = self._holders.get(name)
        if held is not None and held[0] == life:
            self.faults.append(f"{name}: delivered to {holder} while {held[1]} holds it")
        self._holders[name] = (life, holder)

    def let_go(self, holder: str) -> None:
        """This receiver's connection is gone, and its locks with it."""
        for name in [name for name, held in self._holders.items() if held[1] == holder]:
            del self._holders[name]

    def settling(self, name: str, to: Place) -> None:
        if to is Place.ACTIVE:
            # Abandoned: another may get it, and more, before the answer to this one is here.
            self._holders.pop(name, None)
        else:
            self.places[name].add(to)

    def settled(self, name: str, to: Place) -> None:
        self.answers[f"{to.value} confirmed"] += 1
        if to is not Place.ACTIVE:
            self.places[name] = {to}
            self._holders.pop(name, None)

    def settlement_refused(self, name: str, to: Place) -> None:
        """Lock lost: the message is where it was."""
        self.answers["lock lost"] += 1
        if to is not Place.ACTIVE:
            self.places[name] = {Place.ACTIVE}
            self._holders.pop(name, None)

    def settlement_unanswered(self, name: str, to: Place) -> None:
        self.answers["settlements in doubt"] += 1
        if to is not Place.ACTIVE:
            self._holders.pop(name, None)

    def check(self, found: Counter[tuple[str, Place]]) -> list[str]:
        """Compare with what is there at the end, by id and place; return every fault."""
        faults = list(self.faults)
        for name in {name for name, _ in found} - self.places.keys():
            faults.append(f"{name}: there, but nobody sent it")
        for name, places in self.places.items():
            where = Counter({place: found[name, place] for place in Place if found[name, place]})
            if where.total() > 1:
                faults.append(f"{name}: there {where.total()} times ({_words(set(where))})")
            elif where.total() == 0 and Place.GONE not in places:
                faults.append(f"{name}: lost; it should be {_words(places)}")
            elif where.total() == 1 and not set(where) <= places:
                faults.append(f"{name}: {_words(set(where))}; it should be {_words(places)}")
        there = {name for name, _ in found} | self.delivered
        for ids in set(self.batches.values()):
            seen = [name for name in ids if name in there]
            if seen and len(seen) < len(ids):
                faults.append(f"batch of {ids[0]}: {len(seen)} of {len(ids)} were stored")
        return faults


def _words(places: set[Place]) -> str:
    return " or ".join(sorted(place.value for place in places))
