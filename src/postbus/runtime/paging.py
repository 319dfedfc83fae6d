"""Read from a store what an engine said it needs."""

from typing import Final

from postbus.broker.pages import (
    BatchPage,
    BodyPage,
    DuePage,
    GroupPage,
    GroupsPage,
    LanePage,
    Loaded,
    NextDue,
    Page,
    RowPage,
    SeenPage,
    SeenSlice,
)
from postbus.store.ports.store import Store

LIVE_SHARE_MAX: Final = 0.25
"""Bodies are copied out of a batch when no more than this share of it is alive."""


def load_page(store: Store, fragment: int, page: Page) -> Loaded:
    match page:
        case LanePage():
            return store.index.load_lane(fragment, *page)
        case GroupPage():
            return store.index.load_group(fragment, *page)
        case GroupsPage():
            return store.index.load_groups(fragment, *page)
        case DuePage():
            return store.index.load_due(fragment, *page)
        case NextDue():
            return store.index.next_due(fragment, *page)
        case RowPage():
            return store.index.load_rows(fragment, page.keys)
        case BatchPage():
            return store.read_batch(fragment, page.base)
        case BodyPage():
            return store.read_slice(fragment, *page)
        case SeenPage():
            return store.index.load_seen(fragment, *page)
        case SeenSlice():
            return store.index.load_seen_digests(fragment, *page)
    return store.load_pinned(fragment, page.below, LIVE_SHARE_MAX, page.limit)
