// TLS and WebSockets, and the administration client over https, all by the local CA that
// NODE_EXTRA_CA_CERTS names.

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  ServiceBusAdministrationClient,
  bodies,
  connect,
  encryptedConnectionString,
  makeQueue,
  receiveAll,
} from "./support.mjs";

async function sendAndReceive(t, options) {
  const queue = await makeQueue();
  const client = connect(t, { connectionString: encryptedConnectionString, ...options });
  const sender = client.createSender(queue);
  const large = "x".repeat(200_000);
  await sender.sendMessages([{ body: "one" }, { body: "two" }]);
  await sender.sendMessages({ body: large });
  await sender.scheduleMessages({ body: "later" }, new Date(Date.now() + 3_600_000));
  const receiver = client.createReceiver(queue);
  const messages = await receiveAll(receiver, 3);
  assert.deepEqual(bodies(messages), ["one", "two", large]);
  for (const message of messages) await receiver.completeMessage(message);
  const [peeked] = await receiver.peekMessages(1);
  assert.equal(peeked.body, "later");
}

test("messages go over TLS", async (t) => {
  await sendAndReceive(t, {});
});

test("messages go over a WebSocket, which is always one with TLS here", async (t) => {
  await sendAndReceive(t, { webSocketOptions: { webSocket: WebSocket } });
});

test("the administration client works unmodified over https", async () => {
  const admin = new ServiceBusAdministrationClient(encryptedConnectionString);
  const queue = `node-https-${process.pid}`;
  await admin.createQueue(queue, { maxDeliveryCount: 4 });
  const found = await admin.getQueue(queue);
  assert.equal(found.maxDeliveryCount, 4);
  found.maxDeliveryCount = 6;
  assert.equal((await admin.updateQueue(found)).maxDeliveryCount, 6);
  const names = [];
  for await (const listed of admin.listQueues()) names.push(listed.name);
  assert.ok(names.includes(queue));
  assert.equal((await admin.getQueueRuntimeProperties(queue)).totalMessageCount, 0);
  await admin.deleteQueue(queue);
  assert.equal(await admin.queueExists(queue), false);
});
