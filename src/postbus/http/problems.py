"""Refusals over HTTP: `<Error><Code>…</Code><Detail>…</Detail></Error>` (wire §9.5).

The admin clients choose their exception by the status, and some by the `SubCode=` in the text.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

from starlette.responses import Response

from postbus.errors import InternalError, InvalidArgument, NotSupported, ServiceBusError
from postbus.model.description import NOT_IN_XML

_MEDIA_TYPE: Final = "application/xml; charset=utf-8"


class HttpProblem(Exception):
    """A refusal that only HTTP knows: no AMQP condition goes with it."""

    def __init__(
        self,
        status: int,
        text: str,
        *,
        sub_code: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(text)
        self.status = status
        self.sub_code = sub_code
        self.headers = headers


def missing_for_update() -> HttpProblem:
    """Azure's words for an update of an entity that is not there (semantics A §5.3)."""
    return HttpProblem(404, "Not Found. The Operation doesn't exist.", sub_code=40400)


def missing_for_delete() -> HttpProblem:
    """Azure's words for a deletion of an entity that is not there (semantics A §5.3)."""
    return HttpProblem(404, "No service is hosted at the specified address.")


def missing_topic() -> HttpProblem:
    """Azure's words for a subscription to be stored under a topic that is not there."""
    return HttpProblem(
        404, "The incoming request is not recognized as a namespace policy put request."
    )


class SubordinatePath(NamedTuple):
    """A subscription or a rule, in Azure's words for refusing it (semantics A §5.3)."""

    namespace: str
    path: tuple[str, ...]
    """Topic, subscription, rule."""

    def __str__(self) -> str:
        return f"{self.namespace}:Topic:{'|'.join(self.path)}"

    def missing(self) -> HttpProblem:
        return HttpProblem(404, f"The messaging entity '{self}' could not be found.")

    def missing_for_update(self) -> HttpProblem:
        return HttpProblem(404, f"Entity '{self}' was not found.")

    def exists(self) -> HttpProblem:
        return HttpProblem(409, f"The messaging entity '{self}' already exists.")


@contextmanager
def without_sub_code() -> Iterator[None]:
    """Drop the sub-code of a bad request for a subscription or a rule (semantics A §5.3)."""
    try:
        yield
    except (InvalidArgument, NotSupported) as error:
        raise HttpProblem(error.http_status, str(error)) from None


def wrong_method(method: str, allowed: str) -> HttpProblem:
    return HttpProblem(
        405, f"The specified HTTP verb ({method}) is not valid.", headers={"Allow": allowed}
    )


def unknown_path(path: str) -> HttpProblem:
    return HttpProblem(404, f"Endpoint not found: '/{path}'.", sub_code=40400)


def body_too_large(limit_bytes: int) -> HttpProblem:
    # The rest of the body is not read, so the connection cannot carry another request.
    return HttpProblem(
        413,
        f"The body of the request is larger than the {limit_bytes} bytes allowed.",
        headers={"Connection": "close"},
    )


def status_of(error: Exception) -> int:
    """The HTTP status for an error; any error but a refusal is a fault of ours."""
    match error:
        case HttpProblem():
            return error.status
        case ServiceBusError():
            return error.http_status
    return InternalError.http_status


def wording_of(error: Exception, host: str) -> str:
    """The text of an error with Azure's finer number in front, without a tracking id."""
    match error:
        case HttpProblem():
            sub_code, text = error.sub_code, str(error)
        case ServiceBusError():
            sub_code, text = error.sub_code, error.told_at(host)
        case _:
            # The log has the details of a fault, under the tracking id; they are not for strangers.
            sub_code = InternalError.sub_code
            text = "The service was unable to process the request."
    return text if sub_code is None else f"SubCode={sub_code}. {text}"


def error_response(error: Exception, detail: str) -> Response:
    """The reply to a request that failed with `error`; `detail` is its text with a tracking id."""
    status = status_of(error)
    headers = dict(error.headers or {}) if isinstance(error, HttpProblem) else {}
    if status == 401:
        headers["WWW-Authenticate"] = "SharedAccessSignature"
    body = f"<Error><Code>{status}</Code><Detail>{xml_text(detail)}</Detail></Error>"
    return Response(body, status, headers, _MEDIA_TYPE)


def xml_text(text: str) -> str:
    """Text as the content of an element or a quoted attribute, without the characters XML cannot
    hold."""
    # A bare carriage return would be read back as a line feed (XML 1.0 §2.11).
    return escape(NOT_IN_XML.sub("\ufffd", text), {"\r": "&#xD;", '"': "&quot;"})
