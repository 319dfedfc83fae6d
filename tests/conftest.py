"""Settings that every test shares."""

from __future__ import annotations

import hypothesis

# Timing says nothing on a machine shared by several workers; a failure prints how to repeat it.
hypothesis.settings.register_profile("postbus", deadline=None, print_blob=True)
hypothesis.settings.load_profile("postbus")
