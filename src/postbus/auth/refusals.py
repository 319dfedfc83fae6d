"""Why a token of any kind is refused (semantics A §6 has the numbers)."""

from datetime import UTC, datetime

from postbus.errors import ServerBusy, Unauthorized
from postbus.model.times import Instant


class MalformedToken(Unauthorized):
    """The text is no token, or lacks one of its parts."""

    sub_code = 40105


class InvalidSignature(Unauthorized):
    """No key of this name made this signature. A guess must not learn whether the name exists."""

    sub_code = 40103

    def __init__(self) -> None:
        super().__init__("InvalidSignature: The token has an invalid signature.")


class InvalidAudience(Unauthorized):
    """The token was made for another resource."""

    sub_code = 40104

    def __init__(self, audience: str) -> None:
        super().__init__(f"InvalidAudience: The token is not for the audience '{audience}'.")


class ExpiredToken(Unauthorized):
    """The token has expired."""

    sub_code = 40106

    def __init__(self, expired_at: Instant) -> None:
        at = datetime.fromtimestamp(expired_at / 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        super().__init__(f"ExpiredToken: The token is expired. Expiration time: '{at}'.")


class KeyUnknown(Unauthorized):
    """The issuer had no key of the token's name when last asked. It may have one by now."""

    sub_code = 40103

    def __init__(self) -> None:
        super().__init__("InvalidSignature: The token is signed by a key its issuer does not show.")


class NoKeysYet(ServerBusy):
    """The issuer was never reached since the start, so none of its tokens can be judged."""

    def __init__(self) -> None:
        super().__init__("The keys of the token issuer could not be fetched yet. Try again.")
