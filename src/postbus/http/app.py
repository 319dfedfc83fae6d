"""The HTTP side of the port: which request goes where, who may ask, how it is refused.

Every path and every method ends in a reply of the right form. The admin clients parse the body of
an error as XML and fail on anything else (wire contract §9.5).
"""

import re
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from postbus.errors import InvalidArgument, Unauthorized
from postbus.http.atom import Site
from postbus.http.entities import Entities, Namespace, refuse_topic
from postbus.http.problems import (
    HttpProblem,
    body_too_large,
    error_response,
    status_of,
    unknown_path,
    wording_of,
    wrong_method,
)
from postbus.model.address import Address, SubQueue, resolve_path
from postbus.model.description import QueueDescription
from postbus.model.instant import Instant
from postbus.server.auth import Authority, Claims, verify_waiting
from postbus.server.logs import Valve, get_logger
from postbus.server.tracking import TrackingIds

Health = Callable[[], Awaitable[tuple[bool, dict[str, object]]]]
"""Is the broker healthy, and what else is there to say."""
Metrics = Callable[[str], Awaitable[tuple[bytes, str]]]
"""Everything measured, for a scraper that sent this `Accept`, and its content type."""

BODY_MAX_BYTES: Final = 256 * 1024
API_VERSION_FIRST: Final = "2013-10"
API_VERSION_LAST: Final = "2024-05"

_VERSION: Final = re.compile(r"[0-9]{4}-(?:0[1-9]|1[0-2])", re.ASCII)
_HOST: Final = re.compile(r"[A-Za-z0-9._\-\[\]:]{1,255}", re.ASCII)
_OPEN: Final = ("health", "metrics")

_log = get_logger("http")


def build_app(
    *,
    namespace: Namespace,
    authority: Authority,
    clock: Callable[[], Instant],
    tracking: TrackingIds,
    health: Health,
    metrics: Metrics,
    defaults: QueueDescription,
) -> Starlette:
    """The ASGI application. `defaults` is what a queue is whose creator says nothing."""
    front = Front(namespace, authority, clock, tracking, health, metrics, defaults)
    return Starlette(
        routes=[Route("/{path:path}", front)],
        exception_handlers={HTTPException: front.no_route},
    )


class Front:
    """Takes every request, whatever its path and method, to its reply."""

    def __init__(
        self,
        namespace: Namespace,
        authority: Authority,
        clock: Callable[[], Instant],
        tracking: TrackingIds,
        health: Health,
        metrics: Metrics,
        defaults: QueueDescription,
    ) -> None:
        self._namespace = namespace
        self._authority = authority
        self._clock = clock
        self._tracking = tracking
        self._health = health
        self._metrics = metrics
        self._entities = Entities(namespace, defaults, clock)
        self._valve = Valve()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        try:
            response = await self._answer(request)
        except ClientDisconnect:
            return
        except Exception as error:
            # The edge: a refusal becomes a reply, and so does a fault of ours, once it is logged.
            response = self._refuse(request, error)
        await response(scope, receive, send)

    async def no_route(self, request: Request, error: Exception) -> Response:
        """A path that the router itself cannot take, such as one with a line break in it."""
        return self._refuse(request, unknown_path(_path(request)))

    async def _answer(self, request: Request) -> Response:
        path = _path(request)
        # A queue may have one of these names: the admin clients, and only they, give a version.
        if path.lower() in _OPEN and "api-version" not in request.query_params:
            return await self._answer_open(request, path.lower())
        claims = await self._authenticate(request)
        site = self._site(request)
        match path.lower().split("/"):
            case ["$namespaceinfo"]:
                _only_get(request)
                return self._entities.namespace_info(claims, site)
            case ["$resources", "queues"]:
                _only_get(request)
                return await self._entities.list_queues(request.query_params, claims, site)
            case ["$resources", "topics"]:
                _only_get(request)
                return self._entities.list_topics(request.query_params, claims, site)
            case [first, *rest]:
                if first.startswith("$"):
                    raise unknown_path(path)
                if "subscriptions" in rest:
                    raise refuse_topic(request.method, path)
        return await self._answer_entity(request, path, claims, site)

    async def _answer_open(self, request: Request, path: str) -> Response:
        _only_get(request)
        if path == "metrics":
            text, content_type = await self._metrics(request.headers.get("accept", ""))
            return Response(text, headers={"content-type": content_type})
        healthy, details = await self._health()
        status = "healthy" if healthy else "unhealthy"
        body = {"status": status, "message": f"The broker is {status}.", **details}
        return JSONResponse(body, 200 if healthy else 503)

    async def _answer_entity(
        self, request: Request, path: str, claims: Claims, site: Site
    ) -> Response:
        if path:
            _refuse_subqueue(request.method, resolve_path(path))
        match request.method:
            case "GET" | "HEAD" if path:
                return await self._entities.read(path, claims, site)
            case "PUT":
                body = await _read_body(request)
                if_match = request.headers.get("if-match")
                if if_match is None:
                    return await self._entities.create(path, body, claims, site)
                return await self._entities.update(path, body, if_match.strip(), claims, site)
            case "DELETE" if path:
                return await self._entities.delete(path, claims)
        if not path:
            raise unknown_path(path)
        raise wrong_method(request.method, "GET, HEAD, PUT, DELETE")

    async def _authenticate(self, request: Request) -> Claims:
        token = request.headers.get("authorization")
        if token is None:
            raise HttpProblem(
                401, "MissingToken: The request has no 'Authorization' header.", sub_code=40102
            )
        try:
            return await verify_waiting(self._authority, token, _path(request), self._clock)
        except Unauthorized as error:
            # Azure's words first, for clients that look for them (semantics part A §6).
            text = f"claim is empty or token is invalid. {error}"
            raise HttpProblem(401, text, sub_code=error.sub_code) from None

    def _site(self, request: Request) -> Site:
        version = request.query_params.get("api-version")
        if version is not None and not (
            _VERSION.fullmatch(version) and API_VERSION_FIRST <= version <= API_VERSION_LAST
        ):
            raise InvalidArgument(
                f"The api-version '{version[:64]}' is not supported: "
                f"use one from {API_VERSION_FIRST} to {API_VERSION_LAST}."
            )
        host = request.headers.get("host", "")
        if _HOST.fullmatch(host) is None:
            server = request.scope.get("server") or ("localhost", None)
            host = f"{server[0]}:{server[1]}" if server[1] else str(server[0])
        return Site(f"{request.scope['scheme']}://{host}", self._namespace.name, version)

    def _refuse(self, request: Request, error: Exception) -> Response:
        path = _path(request)
        tracking = self._tracking.track(path or None)
        wording, status = wording_of(error), status_of(error)
        self._write_down(error, request.method, path, status, wording, tracking.id)
        return error_response(error, tracking.describe(wording))

    def _write_down(
        self, error: Exception, method: str, path: str, status: int, wording: str, tracking: str
    ) -> None:
        facts = {"tracking": tracking, "method": method, "path": path, "status": status}
        if status == 500:
            _log.error("request_failed", **facts, exc_info=error)
        elif status != 401:
            _log.info("request_refused", **facts, text=wording)
        elif (held := self._valve.passes("unauthorized", self._clock())) is not None:
            # Anybody can cause these, so one a second is written.
            _log.warning("request_unauthorized", **facts, text=wording, held_back=held)


def _path(request: Request) -> str:
    return str(request.scope["path"]).strip("/")


def _only_get(request: Request) -> None:
    if request.method not in ("GET", "HEAD"):
        raise wrong_method(request.method, "GET, HEAD")


def _refuse_subqueue(method: str, address: Address) -> None:
    # R-DLQ-01: a subqueue is never created, deleted or managed on its own.
    if address.subqueue is not SubQueue.MAIN or address.management:
        raise InvalidArgument(f"The specified HTTP verb ({method}) is not valid.")


async def _read_body(request: Request) -> bytes:
    declared = request.headers.get("content-length", "")
    if re.fullmatch("[0-9]{1,18}", declared) and int(declared) > BODY_MAX_BYTES:
        raise body_too_large(BODY_MAX_BYTES)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_MAX_BYTES:
            raise body_too_large(BODY_MAX_BYTES)
    return bytes(body)
