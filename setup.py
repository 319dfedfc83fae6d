"""Builds Postbus: with a C compiler the thread that writes the log, and with POSTBUS_COMPILE=1 the
hot modules by mypyc (docs/compiling.md).

Everything else about the package is in pyproject.toml.
"""

import os
from pathlib import Path

from setuptools import Extension, setup

ROOT = Path("src/postbus")

WORK = "build/mypyc"

# Not compiled: classes that inherit from builtins, or that a decorator builds anew. None of them
# does anything for each message.
INTERPRETED = {
    "amqp/frames/composites.py",
    "amqp/events.py",
    "amqp/faults.py",
    "amqp/limits.py",
    "amqp/frames/outcomes.py",
    "amqp/sasl_plain.py",
    "amqp/sections/fields.py",
    "amqp/frames/security.py",
    "amqp/frames/terminus.py",
    "amqp/frames/transactions.py",
    "amqp/frames/transport.py",
    "amqp/codec/types.py",
}
# Of the shell only what each message passes through.
SHELL = {
    "runtime/accounting.py",
    "net/budgets.py",
    "gateway/browsing.py",
    "runtime/clock.py",
    "runtime/commits.py",
    "messages/batches.py",
    "messages/envelope.py",
    "messages/pings.py",
    "gateway/connection.py",
    "gateway/input_queue.py",
    "runtime/loaded_fragment.py",
    "runtime/receivers.py",
    "gateway/client_connection.py",
    "gateway/client_links.py",
    "gateway/operations.py",
    "gateway/partitioned_links.py",
    "gateway/partitioned_sessions.py",
    "observe/meters.py",
    "net/places.py",
    "namespace/prefetch.py",
    "namespace/spread.py",
    "runtime/fragment_receivers.py",
    "runtime/reads.py",
    "runtime/requests.py",
    "runtime/runtime.py",
    "runtime/dispatch.py",
    "runtime/session_waiters.py",
    "gateway/session_link.py",
    "runtime/sessions.py",
    "runtime/sliced_work.py",
    "runtime/timers.py",
    "runtime/turn.py",
    "gateway/settlement.py",
    "observe/turns.py",
    "store/batch.py",
}


def hot_modules() -> list[str]:
    """The modules to compile, in a stable order."""
    core = {
        path.relative_to(ROOT).as_posix()
        for name in ("amqp", "broker")
        for path in (ROOT / name).rglob("*.py")
        if path.name != "__init__.py"
    }
    return [str(ROOT / name) for name in sorted((core | SHELL) - INTERPRETED)]


def segment_writer() -> list[Extension]:
    """The native thread of the log. POSTBUS_NATIVE=0 leaves it out; with POSTBUS_NATIVE=1 a build
    that fails is an error, and without either Postbus goes on in Python."""
    wanted = os.environ.get("POSTBUS_NATIVE", "")
    if wanted == "0":
        return []
    return [
        Extension(
            "postbus.store.log._segment_writer",
            [str(ROOT / "store/log/_segment_writer.c")],
            extra_compile_args=["-std=gnu11", "-pthread"],
            extra_link_args=["-pthread"],
            py_limited_api=True,
            optional=wanted != "1",
        )
    ]


native = segment_writer()
if os.environ.get("POSTBUS_COMPILE") == "1":
    from mypyc.build import mypycify

    extensions = mypycify(
        ["--strict", *hot_modules()],
        opt_level="2",
        debug_level="0",
        multi_file=True,  # one file of 225,000 lines takes the compiler a fifth longer
        target_dir=WORK,
    )
    setup(ext_modules=extensions + native, options={"build": {"build_base": WORK}})
elif native:
    # The stable interface of Python: one wheel for every version from this one on.
    setup(ext_modules=native, options={"bdist_wheel": {"py_limited_api": "cp311"}})
else:
    setup()
