"""Events as JSON lines, for people and for tools that read text.

Unknown columns are left out. The body is base64, and beside it stands its text if it is a text.
"""

import json
import re
from base64 import b64encode
from typing import Final

from postbus.feed.events import TIMES, Event
from postbus.messages.plain_values import iso
from postbus.model.times import is_httpdate

_NO_TEXT: Final = re.compile(r"[^\t\n\r\x20-\x7e\x85\xa0-\U0010ffff]")


def line(event: Event) -> bytes:
    """An event with the line's end."""
    shown: dict[str, object] = {}
    for name, value in event.items():
        if isinstance(value, bytes):
            shown[name] = b64encode(value).decode()
            text = _text(value)
            if text is not None:
                shown["bodyText"] = text
        elif name in TIMES:
            # Some times to live end after the last year that has four digits.
            if isinstance(value, int) and is_httpdate(value):
                shown[name] = iso(value)
        elif value is not None:
            shown[name] = value
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _text(body: bytes) -> str | None:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return None if _NO_TEXT.search(text) else text
