"""A worker: it takes orders one by one, and every order ends in one of three ways.

done        complete: the message is gone
failed      abandon: it comes again, up to `max_delivery_count` times, then it is a dead letter
impossible  dead-letter, with a reason: somebody looks at it later
"""

import json
import os

from azure.servicebus import (
    AutoLockRenewer,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSubQueue,
)

CONNECTION = os.environ.get(
    "POSTBUS_CONNECTION_STRING",
    "Endpoint=sb://localhost:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true",
)
QUEUE = "orders"
IDLE_S = 5
"""The worker ends when nothing came for so long; one of your own would go on."""


def brew(order: dict[str, object]) -> None:
    """The work itself. It may fail."""
    if order["drink"] == "coffee":
        raise RuntimeError("the coffee machine is broken")
    print(f"served: {order['drink']}")


def work(receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> None:
    try:
        order = json.loads(str(message))
    except ValueError as error:
        receiver.dead_letter_message(
            message, reason="NotAnOrder", error_description=f"not JSON: {error}"
        )
        return
    try:
        brew(order)
    except RuntimeError as error:
        print(f"failed for the {(message.delivery_count or 0) + 1}. time: {error}")
        receiver.abandon_message(message)
    else:
        receiver.complete_message(message)


with ServiceBusClient.from_connection_string(CONNECTION) as bus:
    with bus.get_queue_sender(QUEUE) as sender:
        texts = ('{"drink": "tea"}', '{"drink": "coffee"}', "a cup of anything")
        sender.send_messages([ServiceBusMessage(text) for text in texts])

    # The renewer keeps locks alive while the work takes longer than the lock of the queue.
    with (
        AutoLockRenewer(max_lock_renewal_duration=300) as renewer,
        bus.get_queue_receiver(QUEUE, max_wait_time=IDLE_S, auto_lock_renewer=renewer) as receiver,
    ):
        for message in receiver:
            work(receiver, message)

    with bus.get_queue_receiver(QUEUE, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        for message in receiver.receive_messages(max_message_count=10, max_wait_time=IDLE_S):
            print(f"dead letter: {message} ({message.dead_letter_reason})")
            receiver.complete_message(message)
