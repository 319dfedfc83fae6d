"""What all documents of the management API share: XML namespaces, and how a time is written."""

from datetime import UTC, datetime
from typing import Final

from postbus.model.instant import Instant

ATOM: Final = "http://www.w3.org/2005/Atom"
SERVICE_BUS: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS: Final = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
INSTANCE: Final = "http://www.w3.org/2001/XMLSchema-instance"


def time_text(instant: Instant) -> str:
    """A point in time as ISO 8601 with `Z`."""
    moment = datetime.fromtimestamp(instant // 1_000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{instant % 1_000:03d}Z"
