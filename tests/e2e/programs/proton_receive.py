"""Receives numbered messages, accepting each: the usual second Proton program."""

import sys
from typing import Any

from proton.handlers import MessagingHandler
from proton.reactor import Container


class Receive(MessagingHandler):
    def __init__(self, url: str, user: str, password: str, address: str, expected: int) -> None:
        super().__init__()
        self.url, self.user, self.password = url, user, password
        self.address, self.expected = address, expected
        self.received = 0

    def on_start(self, event: Any) -> None:
        connection = event.container.connect(
            self.url,
            user=self.user,
            password=self.password,
            allowed_mechs="PLAIN",
            reconnect=False,
        )
        event.container.create_receiver(connection, self.address)

    def on_message(self, event: Any) -> None:
        if self.received < self.expected:
            print(event.message.id, int(event.message.body["sequence"]))
            self.received += 1
            if self.received == self.expected:
                event.receiver.close()
                event.connection.close()

    def on_transport_error(self, event: Any) -> None:
        print(f"transport: {event.transport.condition}")

    def on_link_error(self, event: Any) -> None:
        print(f"link: {event.link.remote_condition}")
        event.connection.close()


url, user, password, address, expected = sys.argv[1:]
Container(Receive(url, user, password, address, int(expected))).run()
