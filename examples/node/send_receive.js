// Send a message to the queue `orders`, receive it and complete it.
const { ServiceBusClient } = require("@azure/service-bus");

const connection =
  process.env.POSTBUS_CONNECTION_STRING ??
  "Endpoint=sb://localhost:5672;SharedAccessKeyName=RootManageSharedAccessKey;" +
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true";

async function main() {
  const bus = new ServiceBusClient(connection);
  await bus.createSender("orders").sendMessages({ body: "two cups of tea" });
  const receiver = bus.createReceiver("orders");
  for (const message of await receiver.receiveMessages(1, { maxWaitTimeInMs: 5000 })) {
    console.log(`received: ${message.body}`);
    await receiver.completeMessage(message);
  }
  await bus.close();
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
