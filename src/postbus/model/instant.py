"""Points in time and spans of it, as the wire formats spell them.

An Instant is an `int` of milliseconds since the Unix epoch, the resolution of an AMQP timestamp.
"""

from typing import Final

Instant = int

NEVER: Final[Instant] = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z, the last instant .NET can name; stands for "does not happen"."""
