"""Mistakes in a file and their places, and the shapes of values in a file."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from reprlib import repr as brief

from postbus.errors import ServiceBusError
from postbus.model.description import NOT_IN_XML


class ConfigError(Exception):
    """The file cannot be used; the text names the file, the place in it, and what is wrong."""


class ConfigMistake(Exception):
    """A mistake at a place in the file; the file's name is added once, at the end."""

    def __init__(self, place: str, text: str) -> None:
        super().__init__(f"{place}: {text}" if place else text)


@contextmanager
def refusals_at(place: str) -> Iterator[None]:
    """Turns a refusal, as a client would get it, into a mistake at this place of the file."""
    try:
        yield
    except ServiceBusError as error:
        raise ConfigMistake(place, " ".join(str(error).split())) from None


def table_at(value: object, place: str, keys: Iterable[str]) -> dict[str, object]:
    """A table, or an object of JSON, with no other keys than these."""
    found = any_table_at(value, place)
    known = list(keys)
    for key in found:
        if key not in known:
            likely = get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"; did you mean '{likely[0]}'?" if likely else ""
            raise ConfigMistake(inside(place, key), f"there is no such key{hint}")
    return found


def any_table_at(value: object, place: str) -> dict[str, object]:
    """A table whose keys are names."""
    if not isinstance(value, dict):
        raise not_at(place, "a table", value)
    return value


def list_at(value: object, place: str) -> list[object]:
    if not isinstance(value, list):
        raise not_at(place, "a list", value)
    return value


def text_at(value: object, place: str) -> str:
    if not isinstance(value, str) or not value:
        raise not_at(place, "text", value)
    if NOT_IN_XML.search(value):
        raise ConfigMistake(place, f"has a character that XML cannot hold: {brief(value)}")
    return value


def not_at(place: str, wanted: str, value: object) -> ConfigMistake:
    return ConfigMistake(
        place, "is missing" if value is None else f"must be {wanted}, not {brief(value)}"
    )


def inside(place: str, key: str) -> str:
    """The place of a key, in the notation of either format: `[queues.a] key`, `A.B[0].Key`."""
    if not place:
        return key
    return f"{place} {key}" if place.startswith("[") else f"{place}.{key}"
