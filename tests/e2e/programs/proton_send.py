"""Sends numbered messages and waits until all are accepted: the usual first Proton program."""

import sys
from typing import Any

from proton import Message
from proton.handlers import MessagingHandler
from proton.reactor import Container


class Send(MessagingHandler):
    def __init__(self, url: str, user: str, password: str, address: str, count: int) -> None:
        super().__init__()
        self.url, self.user, self.password = url, user, password
        self.address, self.count = address, count
        self.sent = self.confirmed = 0

    def on_start(self, event: Any) -> None:
        connection = event.container.connect(
            self.url,
            user=self.user,
            password=self.password,
            allowed_mechs="PLAIN",
            reconnect=False,
        )
        event.container.create_sender(connection, self.address)

    def on_sendable(self, event: Any) -> None:
        while event.sender.credit and self.sent < self.count:
            message = Message(id=self.sent + 1, body={"sequence": self.sent + 1})
            event.sender.send(message)
            self.sent += 1

    def on_accepted(self, event: Any) -> None:
        self.confirmed += 1
        if self.confirmed == self.count:
            print(f"{self.confirmed} accepted")
            event.connection.close()

    def on_rejected(self, event: Any) -> None:
        self.stop(event, f"rejected: {event.delivery.remote.condition}")

    def on_transport_error(self, event: Any) -> None:
        self.stop(event, f"transport: {event.transport.condition}")

    def on_link_error(self, event: Any) -> None:
        self.stop(event, f"link: {event.link.remote_condition}")

    def stop(self, event: Any, why: str) -> None:
        print(why)
        if event.connection is not None:
            event.connection.close()


url, user, password, address, count = sys.argv[1:]
Container(Send(url, user, password, address, int(count))).run()
