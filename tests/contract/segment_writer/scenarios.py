"""What a writer asks of the operating system, and when: `python -m ... KIND SCENARIO`.

Each scenario is a process of its own, with `calls.c` between it and the operating system.
"""

from __future__ import annotations

import errno
import gc
import os
import resource
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from itertools import count
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from postbus.store.log.segment_writer import SegmentWriter, WriteFailed
from tests.contract.segment_writer import calls
from tests.contract.segment_writer.calls import SYNC, WRITE
from tests.contract.segment_writer.kinds import KINDS, OpenWriter

SCENARIOS: Final[dict[str, Callable[[OpenWriter], None]]] = {}
NATIVE_ONLY: Final = {"a_thread_that_holds_the_interpreters_lock_holds_nobody_up"}
ENDLESS: Final = "frames_without_end"


def scenario(function: Callable[[OpenWriter], None]) -> Callable[[OpenWriter], None]:
    SCENARIOS[function.__name__] = function
    return function


def new_file() -> int:
    return os.open(f"segment-{len(os.listdir())}", os.O_RDWR | os.O_CREAT)


def content(file: int) -> bytes:
    return os.pread(file, 1 << 20, 0)


def has_news(writer: SegmentWriter) -> bool:
    return bool(select.select([writer], [], [], 0)[0])


def begin_round(writer: SegmentWriter, file: int) -> None:
    """The first frame, one byte, whose sync is held back: what comes now is the next round."""
    calls.hold(SYNC)
    writer.submit(1, file, 0, [b"-"])
    calls.await_held(SYNC)


def since_the_first_round() -> list[calls.Call]:
    return calls.made()[2:]


@scenario
def a_frame_is_durable_after_its_sync_and_not_before(open_writer: OpenWriter) -> None:
    writer, file = open_writer(), new_file()
    begin_round(writer, file)
    assert [call.kind for call in calls.made()] == [WRITE]
    assert (writer.collect(), writer.durable, has_news(writer)) == (0, 0, False)
    waiter = threading.Thread(target=writer.wait, args=(1,), daemon=True)
    waiter.start()
    calls.let_pass(SYNC)
    waiter.join()
    assert [call.kind for call in calls.made()] == [WRITE, SYNC]
    assert select.select([writer], [], [])[0]
    assert writer.collect() == 1


@scenario
def frames_that_follow_each_other_are_one_write(open_writer: OpenWriter) -> None:
    writer, file = open_writer(), new_file()
    begin_round(writer, file)
    for number in range(10):
        writer.submit(2 + number, file, 1 + 6 * number, [b"[%d" % number, b"", b"   ]"])
    calls.let_pass(SYNC)
    writer.wait(11)
    write, sync = since_the_first_round()
    assert write == (WRITE, file, 1, 60, 20)
    assert (sync.kind, sync.file) == (SYNC, file)
    assert content(file) == b"-" + b"".join(b"[%d   ]" % number for number in range(10))


@scenario
def frames_that_do_not_follow_are_written_apart_in_their_order(open_writer: OpenWriter) -> None:
    writer, one, two = open_writer(), new_file(), new_file()
    begin_round(writer, one)
    writer.submit(2, one, 1, [b"aa"])
    writer.submit(3, two, 3, [b"bb"])  # where the frame before it ends, in another file
    writer.submit(4, one, 3, [b"cc"])
    writer.submit(5, one, 9, [b"dd"])
    writer.submit(6, one, 1, [b"ee"])
    calls.let_pass(SYNC)
    writer.wait(6)
    *writes, first, second = since_the_first_round()
    places = [(one, 1), (two, 3), (one, 3), (one, 9), (one, 1)]
    assert [(call.kind, call.file, call.position) for call in writes] == [
        (WRITE, *place) for place in places
    ]
    assert {(first.kind, first.file), (second.kind, second.file)} == {(SYNC, one), (SYNC, two)}
    assert content(one) == b"-eecc\0\0\0\0dd"


@scenario
def more_pieces_than_a_call_takes_are_several_calls(open_writer: OpenWriter) -> None:
    writer, file = open_writer(), new_file()
    limit = os.sysconf("SC_IOV_MAX")
    begin_round(writer, file)
    pieces = [b"%05d" % number for number in range(2 * limit + 400)]
    writer.submit(2, file, 1, pieces[:300])
    writer.submit(3, file, 1 + 5 * 300, pieces[300:])
    calls.let_pass(SYNC)
    writer.wait(3)
    *writes, sync = since_the_first_round()
    assert [call.pieces for call in writes] == [limit, limit, 400]
    assert sync.kind == SYNC
    assert content(file) == b"-" + b"".join(pieces)


@scenario
def many_files_are_all_synced_after_their_writes(open_writer: OpenWriter) -> None:
    writer, files = open_writer(), [new_file() for _ in range(50)]
    begin_round(writer, files[0])
    sequences = count(2)
    for part in range(2):
        for file in files:
            writer.submit(next(sequences), file, 1 + part, [b"%d" % part])
    calls.let_pass(SYNC)
    writer.wait(101)
    made = since_the_first_round()
    for file in files:
        of_file = [call.kind for call in made if call.file == file]
        assert of_file.count(WRITE) == 2
        assert of_file[-1] == SYNC


@scenario
def a_short_write_goes_on_where_it_stopped(open_writer: OpenWriter) -> None:
    pieces = [b"one", b"", b"three", b"4", b"fifth"]
    whole = b"".join(pieces)
    writer, file = open_writer(), new_file()
    sequences = count(1)
    for first in range(1, len(whole)):
        for second in range(1, len(whole) - first + 1):
            calls.plan(WRITE, first, second)
            sequence = next(sequences)
            writer.submit(sequence, file, (sequence - 1) * len(whole), pieces)
            writer.wait(sequence)
            if first + second == len(whole):
                assert calls.made()[-1].kind == SYNC
    assert content(file) == whole * (next(sequences) - 1)


@scenario
def an_interrupted_write_is_repeated(open_writer: OpenWriter) -> None:
    writer, file = open_writer(), new_file()
    calls.plan(WRITE, -errno.EINTR, 2, -errno.EINTR, -errno.EINTR)
    writer.submit(1, file, 0, [b"abc", b"def"])
    writer.wait(1)
    assert [call.bytes for call in calls.made()] == [-1, 2, -1, -1, 4, 0]
    assert content(file) == b"abcdef"


@scenario
def nothing_is_synced_after_a_failed_sync(open_writer: OpenWriter) -> None:
    writer, one, two = open_writer(), new_file(), new_file()
    calls.plan(SYNC, 0, -errno.EIO)
    begin_round(writer, one)
    writer.submit(2, one, 1, [b"a"])
    writer.submit(3, two, 0, [b"b"])
    calls.let_pass(SYNC)
    with pytest.raises(WriteFailed) as raised:
        writer.wait(3)
    assert (raised.value.step, raised.value.errno) == ("sync", errno.EIO)
    with pytest.raises(WriteFailed):
        writer.submit(4, two, 1, [b"c"])
    writer.close()
    assert writer.durable == 1
    assert [call.kind for call in since_the_first_round()] == [WRITE, WRITE, SYNC]


@scenario
def a_failed_sync_fails_the_frames_behind_it(open_writer: OpenWriter) -> None:
    writer, file = open_writer(), new_file()
    calls.plan(SYNC, -errno.EIO)
    begin_round(writer, file)
    for sequence in range(2, 10):
        writer.submit(sequence, file, sequence, [b"never"])
    calls.let_pass(SYNC)
    with pytest.raises(WriteFailed):
        writer.wait(9)
    writer.close()
    assert [call.kind for call in calls.made()] == [WRITE, SYNC]
    assert (writer.durable, content(file)) == (0, b"-")


@scenario
def a_failed_write_keeps_its_whole_round_from_becoming_durable(open_writer: OpenWriter) -> None:
    writer, one, two = open_writer(), new_file(), new_file()
    calls.plan(WRITE, 0, 0, 3, -errno.ENOSPC)
    begin_round(writer, one)
    writer.submit(2, one, 1, [b"aa"])
    writer.submit(3, two, 0, [b"bbbb", b"cc"])
    writer.submit(4, one, 3, [b"never"])
    calls.let_pass(SYNC)
    with pytest.raises(WriteFailed) as raised:
        writer.wait(4)
    assert (raised.value.step, raised.value.errno) == ("write", errno.ENOSPC)
    writer.close()
    assert [call.kind for call in since_the_first_round()] == [WRITE] * 3
    assert (writer.durable, content(one), content(two)) == (1, b"-aa", b"bbb")


@scenario
def a_file_that_may_not_grow_fails_with_what_fits_written(open_writer: OpenWriter) -> None:
    writer, file = open_writer(), new_file()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, resource.RLIM_INFINITY))
    writer.submit(1, file, 0, [b"a" * 600])
    writer.wait(1)
    writer.submit(2, file, 600, [b"b" * 300, b"c" * 300])
    with pytest.raises(WriteFailed) as raised:
        writer.wait(2)
    assert (raised.value.step, raised.value.errno) == ("write", errno.EFBIG)
    assert (writer.durable, content(file)) == (1, b"a" * 600 + b"b" * 300 + b"c" * 100)


@scenario
def too_many_frames_are_refused_until_some_are_durable(open_writer: OpenWriter) -> None:
    writer, file = open_writer(frames_max=3), new_file()
    begin_round(writer, file)
    writer.submit(2, file, 1, [b"a"])
    writer.submit(3, file, 2, [b"b"])
    for _ in range(2):
        with pytest.raises(BlockingIOError):
            writer.submit(4, file, 3, [b"c"])
    calls.let_pass(SYNC)
    writer.wait(3)
    writer.submit(4, file, 3, [b"d"])
    writer.wait(4)
    assert content(file) == b"-abd"


@scenario
def too_many_bytes_are_refused_until_some_are_durable(open_writer: OpenWriter) -> None:
    writer, file = open_writer(bytes_max=10), new_file()
    begin_round(writer, file)
    writer.submit(2, file, 1, [b"123", b"456789"])
    with pytest.raises(BlockingIOError):
        writer.submit(3, file, 10, [b"x"])
    writer.submit(3, file, 10, [])
    calls.let_pass(SYNC)
    writer.wait(3)
    writer.submit(4, file, 10, [b"longer than the bound"])
    writer.wait(4)
    assert content(file) == b"-123456789longer than the bound"


@scenario
def pieces_stay_as_long_as_they_are_needed(open_writer: OpenWriter) -> None:
    writer, file = open_writer(), new_file()
    calls.hold(WRITE)
    block = bytearray(b"block")
    view = memoryview(block)
    data = bytes(range(256)) * 40
    writer.submit(1, file, 0, [bytes(data), view])
    calls.await_held(WRITE)
    writer.submit(2, file, len(data) + 5, [view])
    del view
    gc.collect()
    garbage = [b"\xff" * len(data) for _ in range(200)]
    with pytest.raises(BufferError):
        block.append(0)
    assert writer.collect() == 0
    with pytest.raises(BufferError):
        block.append(0)
    calls.let_pass(WRITE)
    writer.wait(2)
    assert writer.collect() == 2
    block.append(0)
    assert content(file) == data + b"block" * 2
    assert len(garbage) == 200


@scenario
def closing_waits_for_the_sync(open_writer: OpenWriter) -> None:
    writer, file = open_writer(), new_file()
    begin_round(writer, file)
    writer.submit(2, file, 1, [b"last"])
    closer = threading.Thread(target=writer.close, daemon=True)
    closer.start()
    assert writer.durable == 0
    calls.let_pass(SYNC)
    closer.join()
    assert [call.kind for call in calls.made()] == [WRITE, SYNC] * 2
    assert (writer.durable, content(file)) == (2, b"-last")


@scenario
def a_thread_that_holds_the_interpreters_lock_holds_nobody_up(open_writer: OpenWriter) -> None:
    """For the native thread only: a Python thread would wait for this one without end."""
    writer, file = open_writer(), new_file()
    begin_round(writer, file)
    writer.submit(2, file, 1, [b"a"])
    calls.let_pass(SYNC)
    calls.await_with_the_interpreters_lock(4)
    writer.wait(2)
    assert writer.collect() == 2


@scenario
def a_signal_ends_the_waiting_of_the_main_thread(open_writer: OpenWriter) -> None:
    def interrupt(*_: object) -> None:
        raise InterruptedError

    signal.signal(signal.SIGALRM, interrupt)
    writer, file = open_writer(), new_file()
    begin_round(writer, file)
    with pytest.raises(InterruptedError):  # noqa: PT012  # the signal may come before the wait
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        writer.wait(1)
    calls.let_pass(SYNC)
    writer.wait(1)


@scenario
def a_child_of_the_process_is_refused(open_writer: OpenWriter) -> None:
    writer, file = open_writer(), new_file()
    begin_round(writer, file)
    child = os.fork()
    if child == 0:
        uses = [
            lambda: writer.submit(2, file, 1, [b"of the child"]),
            lambda: writer.wait(1),
            writer.collect,
            writer.fileno,
            writer.close,
        ]
        for use in uses:
            with pytest.raises(RuntimeError, match="process that made it"):
                use()
        del uses, use, writer
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    writer.submit(2, file, 1, [b"of the parent"])
    calls.let_pass(SYNC)
    writer.wait(2)
    assert content(file) == b"-of the parent"


@scenario
def frames_without_end(open_writer: OpenWriter) -> None:
    """Until it is killed. Says which frames it collected; a frame holds its number."""
    writer, file = open_writer(frames_max=50), os.open(sys.argv[3], os.O_RDWR | os.O_CREAT)
    for sequence in count(1):
        while True:
            try:
                writer.submit(sequence, file, (sequence - 1) * 800, [b"%8d" % sequence] * 100)
                break
            except BlockingIOError:
                select.select([writer], [], [])
                print(writer.collect(), flush=True)


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            SCENARIOS[sys.argv[2]](KINDS[sys.argv[1]])
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # the writer may be held, and would be waited for
