"""The promises, in the words of a failure. Each is checked by at least one checker."""

from __future__ import annotations

# -- of the process and its stores --------------------------------------------------------------
STAYS = "what was committed stays"
TIME = "time never goes back"
FENCED = "nobody is fenced"
ENDS = "work comes to an end"
FAULT = "the broker has no fault"
REPLAY = "replay equals live"
FULL = "index and tail equal a full replay"
TOTALS = "size and counts are right"
BODY = "no body is wrong or missing"
TAKEN_OUT = "whatever is there can be had"

# -- of every entity ----------------------------------------------------------------------------
FIRST = "nothing is told before it is durable"
LOST = "nothing acknowledged is lost"
REFUSED = "what was refused is not there"
RETURNS = "nothing completed returns"
LOCK = "one holder per lock"
COUNT = "the delivery count is right"
ORDER = "ready messages go out by number"
SENDER = "a sender's messages keep their order"
MATCH = "the queue holds what it must"
ONCE = "everything is there once"
PEEK = "a peek shows what is there"
BEFORE = "nothing comes before its time"
DUE = "what is due comes on time"
SERVED = "whoever waits is served"

# -- of the parts -------------------------------------------------------------------------------
RESUBMITTED = "each dead letter is told what has become of it"
SESSION_ORDER = "a session is received in order"
SESSION_HOLDER = "one holder of a session"
OFFERED = "every session is offered in the end"
STATE = "a session has the state that was set last"
LISTED = "a listing shows what is there"
DUPLICATE = "no duplicate within the window"
DROPPED = "nothing is dropped that is no duplicate"
ATOMIC = "all of a transaction or nothing"
MISPLACED = "no copy is where it does not belong"
COPY_ORDER = "copies keep the order of their messages"
