"""`/metrics` is open to all, so many requests must not cost more than one request a second."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from postbus.observe.metrics import encoder_for

KEPT_S: Final = 1.0
FORMS_MAX: Final = 4
"""Texts kept: a scraper chooses between two forms, and a stranger may ask for odd versions."""

Page = tuple[bytes, str]
"""A text and its content type."""


class Scraping:
    """One scrape at a time; all requests within a second get the same text."""

    def __init__(self, scrape: Callable[[str], Awaitable[Page]], kept_s: float = KEPT_S) -> None:
        self._scrape = scrape
        self._kept_s = kept_s
        self._kept: dict[str, Page] = {}
        self._lock = asyncio.Lock()

    async def page(self, accept: str = "") -> Page:
        """The text for a scraper that sent this `Accept`, and its content type."""
        _, form = encoder_for(accept)
        async with self._lock:
            kept = self._kept.get(form)
            if kept is None:
                kept = await self._scrape(accept)
                self._keep(form, kept)
            return kept

    def _keep(self, form: str, page: Page) -> None:
        if len(self._kept) >= FORMS_MAX:
            return
        self._kept[form] = page
        # Ten thousand entities make megabytes of text, which nobody may want again.
        asyncio.get_running_loop().call_later(self._kept_s, self._kept.pop, form, None)
