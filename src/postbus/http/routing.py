"""The HTTP side of the port: the way of each request, its authorization, and its refusal.

Every path and every method ends in a reply of the right form. The admin clients parse the body of
an error as XML and fail on anything else (wire §9.5).
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import InitVar, dataclass, field
from typing import Final
from urllib.parse import quote, unquote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from postbus.auth.authority import Authority, Claims, verify_waiting
from postbus.errors import InvalidArgument, Unauthorized
from postbus.http.atom import Site
from postbus.http.caller import Caller, RequestContext, Resource
from postbus.http.deadletters import DeadLetters, find_ask
from postbus.http.entities import EntityResource, list_entities, namespace_info
from postbus.http.feed import FeedPages, find_feed
from postbus.http.mailbox import Mailbox
from postbus.http.messages import Messages, find_target
from postbus.http.problems import (
    HttpProblem,
    body_too_large,
    error_response,
    status_of,
    unknown_path,
    wording_of,
    wrong_method,
)
from postbus.http.replies import listed_reply
from postbus.http.rules import RuleResource, list_rules
from postbus.http.subscriptions import SubscriptionResource, list_subscriptions
from postbus.http.usage import answer_usage, find_usage
from postbus.model.address import SubQueue, resolve_path
from postbus.model.description import QueueDescription
from postbus.model.fields import QUEUE, TOPIC
from postbus.model.times import Instant
from postbus.namespace.namespace import Namespace
from postbus.namespace.resubmit import Resubmission
from postbus.namespace.usage import Usage
from postbus.net.http_protocol import LOG_IN
from postbus.observe.logs import TrackingIds, Valve, get_logger

Health = Callable[[], Awaitable[tuple[bool, dict[str, object]]]]
"""Whether the broker is healthy, and the details."""
Metrics = Callable[[str], Awaitable[tuple[bytes, str]]]
"""All metrics in the form that an `Accept` asks for, and its content type."""

BODY_MAX_BYTES: Final = 256 * 1024
API_VERSION_FIRST: Final = "2013-10"
API_VERSION_LAST: Final = "2024-05"

_VERSION: Final = re.compile(r"[0-9]{4}-(?:0[1-9]|1[0-2])", re.ASCII)
_HOST: Final = re.compile(r"[A-Za-z0-9._\-\[\]:]{1,255}", re.ASCII)
_RULE: Final = re.compile(r".+/subscriptions/[^/]+/rules/[^/]+", re.IGNORECASE | re.DOTALL)
_OPEN: Final = ("health", "metrics")

_log = get_logger("http")


@dataclass(kw_only=True, eq=False, slots=True)
class Front:
    """Answers every request, whatever its path and method."""

    namespace: Namespace
    authority: Authority
    clock: Callable[[], Instant]
    wall: Callable[[], Instant]
    tracking: TrackingIds
    health: Health
    metrics: Metrics
    defaults: QueueDescription
    """The defaults of a new queue."""
    mailbox: InitVar[Mailbox]
    feeds: FeedPages
    resubmission: InitVar[Resubmission]
    usage: Usage
    wait_max_ms: InitVar[int]
    """The longest wait of a receive."""
    _messages: Messages = field(init=False)
    _dead_letters: DeadLetters = field(init=False)
    _valve: Valve = field(init=False, default_factory=Valve)

    def __post_init__(self, mailbox: Mailbox, resubmission: Resubmission, wait_max_ms: int) -> None:
        self._messages = Messages(mailbox, self.authority.review, wait_max_ms)
        self._dead_letters = DeadLetters(resubmission, self.authority.review)

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            routes=[Route("/{path:path}", self)],
            exception_handlers={HTTPException: self.no_route},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        try:
            response = await self._answer(request)
        except ClientDisconnect:
            return
        except Exception as error:
            # The edge: a refusal becomes a reply. A fault of ours is logged and becomes a reply
            # too.
            response = self._refuse(request, error)
        await response(scope, receive, send)

    async def no_route(self, request: Request, error: Exception) -> Response:
        """Refuse a path that the router itself cannot take, such as a path with a line break."""
        return self._refuse(request, unknown_path(_path(request)))

    async def _answer(self, request: Request) -> Response:
        path = _path(request)
        # A queue may have one of these names. Only the admin clients give a version.
        if path.lower() in _OPEN and "api-version" not in request.query_params:
            return await self._answer_open(request, path.lower())
        if not path and request.method in ("GET", "HEAD"):
            # Azure shows this to anybody, and operators test a connection with it.
            return listed_reply(self._site(request), self.clock())
        raw_path = _raw_path(request)
        # No other name may have a `$`, but a rule may have any name.
        if "$" in unquote(raw_path) and _RULE.fullmatch(path) is None:
            special = await self._answer_special(request, raw_path)
            if special is not None:
                return special
        target = find_target(request.method, raw_path)
        asked = await self._asked(request, path if target is None else target.path)
        if target is not None:
            return await self._messages.answer(request, target, asked.caller.claims, asked.site)
        match path.lower().split("/"):
            case ["$namespaceinfo"]:
                _only_get(request)
                return namespace_info(self.namespace, asked)
            case ["$resources", "queues" | "topics" as kind]:
                _only_get(request)
                form = QUEUE if kind == "queues" else TOPIC
                return await list_entities(
                    form, self.namespace, request.query_params, asked, self.clock()
                )
            case [first, *_] if first.startswith("$"):
                raise unknown_path(path)
        below = _below_topic(path)
        if below is not None:
            response = await self._answer_below(request, *below, asked)
        else:
            if path:
                _refuse_subqueue(request.method, path)
            resource = EntityResource(self.namespace, self.defaults, path, self.clock())
            response = await self._answer_resource(request, resource, path, asked)
        self.usage.managed(path)
        return response

    async def _answer_special(self, request: Request, raw_path: str) -> Response | None:
        """Answer requests that Azure does not have: feeds, dead letters by number, usage. Otherwise
        None."""
        feed = find_feed(raw_path)
        if feed is not None:
            asked = await self._asked(request, feed.path)
            return await self.feeds.answer(request, feed, asked.caller.claims, asked.site)
        ask = find_ask(raw_path)
        if ask is not None:
            asked = await self._asked(request, ask.path)
            claims, site = asked.caller.claims, asked.site
            response = await self._dead_letters.answer(request, ask, claims, site)
            self.usage.managed(ask.path)
            return response
        used = find_usage(raw_path)
        if used is not None:
            asked = await self._asked(request, used)
            return answer_usage(request, used, self.usage, asked.caller.claims, asked.site)
        return None

    async def _answer_open(self, request: Request, path: str) -> Response:
        _only_get(request)
        if path == "metrics":
            text, content_type = await self.metrics(request.headers.get("accept", ""))
            return Response(text, headers={"content-type": content_type})
        healthy, details = await self.health()
        status = "healthy" if healthy else "unhealthy"
        body = {"status": status, "message": f"The broker is {status}.", **details}
        return JSONResponse(body, 200 if healthy else 503)

    async def _answer_below(
        self, request: Request, topic: str, rest: list[str], asked: RequestContext
    ) -> Response:
        """The resource below a topic: `Subscriptions[/{name}[/Rules[/{name}]]]`."""
        namespace, now = self.namespace, self.clock()
        path = _path(request)
        match rest:
            case []:
                _only_get(request)
                return await list_subscriptions(namespace, topic, request.query_params, asked, now)
            case [name]:
                resource: Resource = SubscriptionResource(
                    namespace, self.defaults, topic, name, now
                )
                return await self._answer_resource(request, resource, path, asked)
            case [subscription, rules] if rules.lower() == "rules":
                _only_get(request)
                return await list_rules(
                    namespace, topic, subscription, request.query_params, asked, now
                )
            case [subscription, rules, name] if rules.lower() == "rules":
                resource = RuleResource(namespace, topic, subscription, name, now)
                return await self._answer_resource(request, resource, path, asked)
        _refuse_subqueue(request.method, path)
        raise unknown_path(path)

    async def _answer_resource(
        self, request: Request, resource: Resource, path: str, asked: RequestContext
    ) -> Response:
        match request.method:
            case "GET" | "HEAD" if path:
                return await resource.read(asked)
            case "PUT":
                body = await _read_body(request)
                asked.caller.review(self.authority.review)  # that may have taken long
                if (if_match := request.headers.get("if-match")) is None:
                    return await resource.create(body, asked)
                return await resource.update(body, if_match.strip(), asked)
            case "DELETE" if path:
                return await resource.delete(asked)
        if not path:
            raise unknown_path(path)
        raise wrong_method(request.method, "GET, HEAD, PUT, DELETE")

    async def _asked(self, request: Request, path: str) -> RequestContext:
        """The caller of a request for `path`. The path tells whose keys may have signed the
        token."""

        async def supplement(header: str, other: str) -> Claims | None:
            token = request.headers.get(header)
            return None if token is None else await self._verify(token, other)

        caller = Caller(await self._authenticate(request, path), supplement)
        return RequestContext(caller, self._site(request))

    async def _authenticate(self, request: Request, path: str) -> Claims:
        token = request.headers.get("authorization")
        if token is None:
            raise HttpProblem(
                401, "MissingToken: The request has no 'Authorization' header.", sub_code=40102
            )
        claims = await self._verify(token, path)
        log_in: Callable[[], None] | None = request.scope.get("state", {}).get(LOG_IN)
        if log_in is not None:
            log_in()
        return claims

    async def _verify(self, token: str, path: str) -> Claims:
        try:
            # Claims are about URLs: a question mark in the name of a rule must not end the path
            # here.
            return await verify_waiting(self.authority, token, quote(path), self.wall)
        except Unauthorized as error:
            # Azure's words first, for clients that look for them (semantics A §6).
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
        base_url = f"{request.scope['scheme']}://{_host(request)}"
        return Site(base_url, self.namespace.name, version)

    def _refuse(self, request: Request, error: Exception) -> Response:
        path = _path(request)
        tracking = self.tracking.track(path or None)
        wording, status = wording_of(error, _host(request)), status_of(error)
        self._write_down(error, request.method, path, status, wording, tracking.id)
        return error_response(error, tracking.describe(wording))

    def _write_down(
        self, error: Exception, method: str, path: str, status: int, wording: str, tracking: str
    ) -> None:
        facts = {"tracking": tracking, "method": method, "path": path, "status": status}
        if status == 500:
            _log.error("request failed", **facts, exc_info=error)
        elif status != 401:
            _log.info("request refused", **facts, text=wording)
        elif (held := self._valve.passes("unauthorized", self.clock())) is not None:
            # Anybody can cause these, so only one line a second is written.
            _log.warning("request unauthorized", **facts, text=wording, held_back=held)


def _host(request: Request) -> str:
    """The client's name for this server, with the port where the client gives one."""
    host = request.headers.get("host", "")
    if _HOST.fullmatch(host) is not None:
        return host
    server = request.scope.get("server") or ("localhost", None)
    return f"{server[0]}:{server[1]}" if server[1] else str(server[0])


def _path(request: Request) -> str:
    return str(request.scope["path"]).strip("/")


def _raw_path(request: Request) -> str:
    """The path with its percent-encoding, which tells a slash in a name from a separator."""
    raw: bytes | None = request.scope.get("raw_path")
    return quote(_path(request)) if raw is None else raw.decode("latin-1")


def _only_get(request: Request) -> None:
    if request.method not in ("GET", "HEAD"):
        raise wrong_method(request.method, "GET, HEAD")


def _below_topic(path: str) -> tuple[str, list[str]] | None:
    """The topic of a path and the parts after `Subscriptions`; None without that word."""
    parts = path.split("/")
    # From the left: an entity name may have this word only as its first part. A subscription or a
    # rule may have it as its name.
    for index, part in enumerate(parts[1:], 1):
        if part.lower() == "subscriptions":
            return "/".join(parts[:index]), parts[index + 1 :]
    return None


def _refuse_subqueue(method: str, path: str) -> None:
    # R-DLQ-01: a subqueue is never created, deleted or managed on its own.
    address = resolve_path(path)
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
