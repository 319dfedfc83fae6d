"""`GET /$usage` and `GET /{entity}/$usage`: the cost of entities since the start (R-COST-01)."""

from typing import Final
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from postbus.auth.authority import Claims, Right, missing_claim
from postbus.http.atom import Site
from postbus.http.problems import wrong_method
from postbus.model.address import resolve_path
from postbus.namespace.usage import Usage

_USAGE: Final = "$usage"


def find_usage(raw_path: str) -> str | None:
    """The path of the entity in a usage request, empty for all; None for another request."""
    path, _, last = raw_path.strip("/").rpartition("/")
    return unquote(path) if unquote(last).lower() == _USAGE else None


def answer_usage(request: Request, path: str, usage: Usage, claims: Claims, site: Site) -> Response:
    if request.method not in ("GET", "HEAD"):
        raise wrong_method(request.method, "GET, HEAD")
    # Rights before existence: a stranger does not learn what there is (semantics A §6).
    if not claims.allows(Right.MANAGE, quote(path)):
        raise missing_claim(Right.MANAGE, site.address(path))
    return JSONResponse(usage.of_one(resolve_path(path)) if path else usage.of_all())
