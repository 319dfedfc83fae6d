"""Orders of several tables: those of one table are served in order, by one waiter at a time."""

import os

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage

CONNECTION = os.environ.get(
    "POSTBUS_CONNECTION_STRING",
    "Endpoint=sb://localhost:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true",
)
QUEUE = "tables"

with ServiceBusClient.from_connection_string(CONNECTION) as bus:
    with bus.get_queue_sender(QUEUE) as sender:
        for table, drink in (("7", "tea"), ("8", "milk"), ("7", "cake"), ("7", "the bill")):
            sender.send_messages(ServiceBusMessage(drink, session_id=f"table {table}"))

    for _ in range(2):  # a waiter of your own would go on, and treat OperationTimeoutError as quiet
        with bus.get_queue_receiver(
            QUEUE, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=3
        ) as receiver:
            session = receiver.session
            served = int(session.get_state() or 0)
            for message in receiver:
                served += 1
                print(f"{session.session_id}: {message}")
                receiver.complete_message(message)
            # The next holder of the session finds this, also after a restart of the broker.
            session.set_state(str(served))
            print(f"{session.session_id}: served {served}")
