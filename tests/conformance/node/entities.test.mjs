// Queues through the administration client, and the errors that a client of a wrong one sees.

import assert from "node:assert/strict";
import { test } from "node:test";

import { administration, bodies, connect, connectionString, makeQueue, withCode } from "./support.mjs";

test("a queue is created, read, updated, listed and deleted", async () => {
  const admin = administration();
  const queue = await makeQueue({ lockDuration: "PT45S", maxDeliveryCount: 4, userMetadata: "notes" });
  const found = await admin.getQueue(queue);
  assert.equal(found.name, queue);
  assert.equal(found.lockDuration, "PT45S");
  assert.equal(found.maxDeliveryCount, 4);
  assert.equal(found.userMetadata, "notes");
  assert.equal(found.status, "Active");
  assert.equal(found.requiresSession, false);

  found.maxDeliveryCount = 6;
  assert.equal((await admin.updateQueue(found)).maxDeliveryCount, 6);
  const names = [];
  for await (const listed of admin.listQueues()) names.push(listed.name);
  assert.ok(names.includes(queue));
  assert.equal((await admin.getNamespaceProperties()).messagingSku !== undefined, true);

  await admin.deleteQueue(queue);
  assert.equal(await admin.queueExists(queue), false);
  await assert.rejects(admin.getQueue(queue), { code: "MessageEntityNotFoundError" });
});

test("a name is taken once", async () => {
  const queue = await makeQueue();
  await assert.rejects(administration().createQueue(queue), {
    code: "MessageEntityAlreadyExistsError",
    statusCode: 409,
  });
});

test("runtime counts follow the messages", async (t) => {
  const queue = await makeQueue();
  const client = connect(t);
  const sender = client.createSender(queue);
  await sender.sendMessages([{ body: 1 }, { body: 2 }, { body: 3 }]);
  await sender.scheduleMessages({ body: 4 }, new Date(Date.now() + 3_600_000));
  const receiver = client.createReceiver(queue);
  const [message] = await receiver.receiveMessages(1);
  await receiver.deadLetterMessage(message);

  const counts = await administration().getQueueRuntimeProperties(queue);
  assert.equal(counts.activeMessageCount, 2);
  assert.equal(counts.deadLetterMessageCount, 1);
  assert.equal(counts.scheduledMessageCount, 1);
  assert.equal(counts.totalMessageCount, 4);
  assert.ok(counts.sizeInBytes > 0);
});

test("an unknown queue is not found", async (t) => {
  // wire §7.2
  const client = connect(t);
  const missing = withCode("MessagingEntityNotFound");
  await assert.rejects(client.createSender("no-such-queue").sendMessages({ body: 1 }), missing);
  await assert.rejects(client.createReceiver("no-such-queue").receiveMessages(1), missing);
  await assert.rejects(client.createReceiver("no-such-queue").peekMessages(1), missing);
});

test("a wrong key is refused", async (t) => {
  // R-SETTLE-02
  const queue = await makeQueue();
  const wrong = connectionString.replace("SAS_KEY_VALUE", "another");
  const client = connect(t, { connectionString: wrong });
  const denied = withCode("UnauthorizedAccess");
  await assert.rejects(client.createSender(queue).sendMessages({ body: 1 }), denied);
  await assert.rejects(client.createReceiver(queue).receiveMessages(1), denied);
});

for (const [status, sends, receives] of [
  ["Disabled", false, false],
  ["SendDisabled", false, true],
  ["ReceiveDisabled", true, false],
]) {
  test(`a queue that is ${status} refuses just that`, async (t) => {
    // semantics B §11
    const queue = await makeQueue();
    const admin = administration();
    const found = await admin.getQueue(queue);
    found.status = status;
    await admin.updateQueue(found);

    const client = connect(t);
    const disabled = withCode("MessagingEntityDisabled");
    const sending = client.createSender(queue).sendMessages({ body: "x" });
    await (sends ? sending : assert.rejects(sending, disabled));
    const receiving = client.createReceiver(queue).receiveMessages(1, { maxWaitTimeInMs: 1_000 });
    await (receives ? receiving : assert.rejects(receiving, disabled));
  });
}

test("the senders and receivers of one client do not disturb each other", async (t) => {
  // bad input on one link is that link's own affair
  const queue = await makeQueue();
  const client = connect(t);
  const sender = client.createSender(queue);
  await sender.sendMessages({ body: 1 });
  await assert.rejects(client.createSender("no-such-queue").sendMessages({ body: 0 }));
  await sender.sendMessages({ body: 2 });
  assert.deepEqual(bodies(await client.createReceiver(queue).peekMessages(10)), [1, 2]);
});
