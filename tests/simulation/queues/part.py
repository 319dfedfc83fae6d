"""A plain queue, and what happens where nobody waits and everybody leaves."""

from __future__ import annotations

from postbus.broker.message import DEFERRED
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER
from tests.simulation.parts import Part
from tests.simulation.queues.checkers import DueMessagesCome, queue_checkers
from tests.simulation.queues.clients import Browsers, Receivers, Senders, random_policy
from tests.simulation.queues.queues import Queues

ORDERS = 7


class QueueClients(Part):
    """Senders, receivers and browsers of all queues, and their checkers."""

    def __init__(self, queues: Queues) -> None:
        super().__init__(queues.world, queues.scheduler)
        self.queues = queues
        queues.checkers += queue_checkers(queues)
        self.senders, self.receivers = Senders(queues), Receivers(queues)
        browsers = Browsers(queues)
        self.actions = self.senders.actions | self.receivers.actions | browsers.actions
        self.after_delivery = [self.receivers.settle]
        """What somebody who has received a message may do with it."""
        self.steps = {self.use_delivery: self.chance.choice([0, 2, 8])}

    def use_delivery(self) -> None:
        if self.queues.deliveries:
            self.chance.choice(self.after_delivery)()

    def open_up(self) -> None:
        for queue in self.queues.models:
            self.receivers.desert(queue)

    def take_out(self) -> None:
        for queue in self.queues.models:
            in_sessions = self.queues.requires_session(queue)
            for subqueue in (MAIN, DEAD_LETTER, TRANSFER_DEAD_LETTER):
                if subqueue != MAIN or not in_sessions:
                    self.world.attach(queue, subqueue, True, 1_000)
            for entry in list(self.queues.models[queue].durable.entries.values()):
                if entry.lane == DEFERRED and not (in_sessions and entry.subqueue == MAIN):
                    self.receivers.receive_deferred(
                        queue, entry.subqueue, None, [entry.number], True
                    )


class PlainQueue(Part):
    """A queue without sessions that does not look for duplicates."""

    def __init__(self, clients: QueueClients) -> None:
        super().__init__(clients.world, clients.scheduler)
        self._clients = clients
        clients.queues.add(ORDERS, "orders", lambda: random_policy(clients.queues))
        self.steps = {
            self.hurry: self.chance.choice([0, 0.1, 0.3]),
            self.desert: self.chance.choice([0, 0.1, 0.5]),
        }

    def hurry(self) -> None:
        """Somebody sends to a queue where nobody waits. While that is written, a receiver comes,
        and others ask for things that write nothing: the runtime takes a turn for them."""
        clients = self._clients
        clients.receivers.desert(ORDERS)
        clients.senders.send_to(ORDERS, 1)
        self.scheduler.run_loop()
        self.world.attach(ORDERS, MAIN, False, 2)
        for _ in range(3):
            clients.receivers.settle_late()
        self.scheduler.run_loop()

    def desert(self) -> None:
        """Everybody leaves. When the locks have run out, the engine is not needed any more."""
        self._clients.receivers.desert(ORDERS)
        self.scheduler.wait(self.world.policy_of(ORDERS).lock_ms)
        for _ in range(2):  # a checkpoint may have to be written first
            self.scheduler.rest()
            self.world.forget_idle()
        self.scheduler.pass_time()
        if not self.world.failing:
            with self.scheduler.quiet():
                DueMessagesCome(self._clients.queues).all_at_rest()
