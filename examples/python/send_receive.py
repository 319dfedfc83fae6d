"""Send a message to the queue `orders`, receive it and complete it."""

import os

from azure.servicebus import ServiceBusClient, ServiceBusMessage

CONNECTION = os.environ.get(
    "POSTBUS_CONNECTION_STRING",
    "Endpoint=sb://localhost:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true",
)

with ServiceBusClient.from_connection_string(CONNECTION) as bus:
    with bus.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("two cups of tea"))
    with bus.get_queue_receiver("orders") as receiver:
        for message in receiver.receive_messages(max_wait_time=5):
            print(f"received: {message}")
            receiver.complete_message(message)
