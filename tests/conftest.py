"""Settings that every test shares."""

from __future__ import annotations

import os

import hypothesis

# Timing says nothing on a machine shared by several workers; a failure prints how to repeat it.
hypothesis.settings.register_profile("fresh", deadline=None, print_blob=True)
# The same examples every time: what a change is judged by does not depend on luck. Half as many as
# there are of fresh ones, for the same ones find nothing new.
hypothesis.settings.register_profile(
    "same", deadline=None, print_blob=True, derandomize=True, max_examples=50
)
hypothesis.settings.load_profile("fresh" if "POSTBUS_FRESH_EXAMPLES" in os.environ else "same")
