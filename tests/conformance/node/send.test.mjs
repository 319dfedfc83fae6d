// Sending: one, many, batches, a thousand at once; every field; scheduling and taking back.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { test } from "node:test";

import {
  administration, bodies, connect, makeQueue, receiveAll, receiveNone, receiveOne, withCode,
} from "./support.mjs";

test("a message sent is received and completed", async (t) => {
  // R-SETTLE-01, R-SETTLE-09
  const queue = await makeQueue();
  const client = connect(t);
  await client.createSender(queue).sendMessages({ body: "order 1" });

  const receiver = client.createReceiver(queue);
  const message = await receiveOne(receiver);
  assert.equal(message.body, "order 1");
  assert.equal(message.deliveryCount, 0);
  await receiver.completeMessage(message);
  await receiveNone(receiver);
});

test("a list arrives in the order of the list", async (t) => {
  // R-SETTLE-01: one batch transfer
  const queue = await makeQueue();
  const client = connect(t);
  const sent = Array.from({ length: 20 }, (_, n) => ({ body: `order ${n}` }));
  await client.createSender(queue).sendMessages(sent);

  const receiver = client.createReceiver(queue, { receiveMode: "receiveAndDelete" });
  const messages = await receiveAll(receiver, 20);
  assert.deepEqual(bodies(messages), bodies(sent));
});

test("a batch knows its limit and is accepted when full", async (t) => {
  // wire §4.6
  const queue = await makeQueue();
  const client = connect(t);
  const sender = client.createSender(queue);
  const batch = await sender.createMessageBatch();
  assert.ok(batch.maxSizeInBytes > 100_000);
  while (batch.tryAddMessage({ body: "x".repeat(4096) }));
  assert.ok(batch.count > 20);
  await sender.sendMessages(batch);

  const { totalMessageCount } = await administration().getQueueRuntimeProperties(queue);
  assert.equal(totalMessageCount, batch.count);
});

test("a batch is stored whole or not at all", async (t) => {
  // R-SETTLE-01, R-SETTLE-02
  const queue = await makeQueue();
  const client = connect(t);
  const sender = client.createSender(queue);
  const bad = { body: "bad", applicationProperties: { wide: "w".repeat(70_000) } };
  await assert.rejects(sender.sendMessages([{ body: "good" }, bad]), withCode("MessageSizeExceeded"));
  await sender.sendMessages({ body: "after" });
  assert.deepEqual(bodies(await client.createReceiver(queue).peekMessages(10)), ["after"]);
});

test("a thousand sends at once on one link are all accepted", async (t) => {
  // R-SETTLE-03, R-SETTLE-12: every one is in flight before the first is answered
  const queue = await makeQueue();
  const client = connect(t);
  const sender = client.createSender(queue);
  await sender.sendMessages({ body: -1 }); // opens the link
  await Promise.all(
    Array.from({ length: 1000 }, (_, n) => sender.sendMessages({ body: n, messageId: `${n}` })),
  );

  const receiver = client.createReceiver(queue, { receiveMode: "receiveAndDelete" });
  const messages = await receiveAll(receiver, 1001);
  assert.deepEqual(bodies(messages), Array.from({ length: 1001 }, (_, n) => n - 1));
});

test("every field of a message comes back", async (t) => {
  // wire §4.2, §4.5
  const queue = await makeQueue();
  const client = connect(t);
  const sent = {
    body: { nested: [1, "two", null] },
    messageId: "id-1",
    sessionId: "group-1",
    partitionKey: "group-1",
    contentType: "application/json",
    correlationId: "correlation-1",
    subject: "subject-1",
    to: "to-1",
    replyTo: "reply-1",
    replyToSessionId: "reply-group-1",
    timeToLive: 300_000,
    applicationProperties: { text: "größe", number: 42, real: 2.5, yes: true, no: false },
  };
  await client.createSender(queue).sendMessages(sent);

  const receiver = client.createReceiver(queue);
  const message = await receiveOne(receiver);
  for (const [field, value] of Object.entries(sent)) {
    assert.deepEqual(message[field], value, field);
  }
  assert.equal(message.expiresAtUtc.getTime(), message.enqueuedTimeUtc.getTime() + 300_000);
  assert.ok(Math.abs(Date.now() - message.enqueuedTimeUtc.getTime()) < 10_000);
  assert.ok(message.lockedUntilUtc.getTime() > Date.now());
  assert.match(message.lockToken, /^[0-9a-f-]{36}$/);
  assert.equal(message.state, "active");
  await receiver.completeMessage(message);
});

for (const [name, days] of [
  ["a hundred days", 100],
  ["a thousand years", 365_250],
]) {
  test(`a time to live of ${name} comes back`, async (t) => {
    // The header ends at 49.7 days; the SDK writes the rest into other fields (wire §4.2).
    const queue = await makeQueue();
    const client = connect(t);
    const sender = client.createSender(queue);
    const timeToLive = days * 86_400_000;
    const message = { body: "x", bodyType: "value", header: { timeToLive } };
    await sender.sendMessages(message);
    await sender.scheduleMessages(message, new Date(Date.now() + 1_000));
    const batch = await sender.createMessageBatch();
    assert.ok(batch.tryAddMessage(message));
    await sender.sendMessages(batch);
    const receiver = client.createReceiver(queue, { receiveMode: "receiveAndDelete" });
    for (const { _rawAmqpMessage: raw, enqueuedTimeUtc } of await receiveAll(receiver, 3)) {
      assert.equal(raw.header.timeToLive, timeToLive);
      assert.equal(raw.properties.creationTime, enqueuedTimeUtc.getTime());
      assert.equal(raw.properties.absoluteExpiryTime, enqueuedTimeUtc.getTime() + timeToLive);
    }
  });
}

for (const [bodyType, body] of [
  ["data", Buffer.from([0, 1, 255])],
  ["value", { key: "text", list: [1, 2] }],
  ["sequence", [1, "two", [3]]],
]) {
  test(`a body of AMQP type ${bodyType} comes back`, async (t) => {
    // wire §4.1
    const queue = await makeQueue();
    const client = connect(t);
    await client.createSender(queue).sendMessages({ body, bodyType, messageId: randomUUID() });
    const receiver = client.createReceiver(queue, { receiveMode: "receiveAndDelete" });
    const message = await receiveOne(receiver);
    assert.deepEqual(message.body, body);
    assert.equal(message._rawAmqpMessage.bodyType, bodyType);
  });
}

test("a message over the limit is refused and the link stays good", async (t) => {
  // R-SETTLE-02
  const queue = await makeQueue();
  const client = connect(t);
  const sender = client.createSender(queue);
  const large = { body: Buffer.alloc(300_000) };
  await assert.rejects(sender.sendMessages(large), withCode("MessageSizeExceeded"));
  await sender.sendMessages({ body: "next" });
  assert.deepEqual(bodies(await client.createReceiver(queue).peekMessages(10)), ["next"]);
});

test("scheduled messages come when they are due", async (t) => {
  // semantics B §4: by call and by field
  const queue = await makeQueue();
  const client = connect(t);
  const sender = client.createSender(queue);
  const due = new Date(Date.now() + 3_000);
  const numbers = await sender.scheduleMessages([{ body: "one" }, { body: "two" }], due);
  assert.equal(numbers.length, 2);
  await sender.sendMessages({ body: "three", scheduledEnqueueTimeUtc: due });

  const receiver = client.createReceiver(queue);
  const waiting = await receiver.peekMessages(10);
  assert.deepEqual(waiting.map((message) => message.state), ["scheduled", "scheduled", "scheduled"]);
  const messages = await receiveAll(receiver, 3);
  assert.ok(Date.now() >= due.getTime());
  assert.deepEqual(bodies(messages), ["one", "two", "three"]);
  for (const message of messages) {
    assert.equal(message.state, "scheduled"); // as in Azure, though it is active by now
    assert.ok(message.enqueuedTimeUtc >= due);
    assert.ok(!numbers.some((number) => number.equals(message.sequenceNumber)));
    await receiver.completeMessage(message);
  }
});

test("scheduled messages can be cancelled once", async (t) => {
  // semantics B §4; R-SETTLE-02
  const queue = await makeQueue();
  const client = connect(t);
  const sender = client.createSender(queue);
  const due = new Date(Date.now() + 3_600_000);
  const [first, second] = await sender.scheduleMessages([{ body: "one" }, { body: "two" }], due);
  await sender.cancelScheduledMessages(first);
  await assert.rejects(sender.cancelScheduledMessages(first), withCode("MessageNotFound"));
  assert.deepEqual(bodies(await client.createReceiver(queue).peekMessages(10)), ["two"]);
  await sender.cancelScheduledMessages([second]);
});

test("a message with a known id is accepted and dropped", async (t) => {
  // semantics B §6
  const queue = await makeQueue({ requiresDuplicateDetection: true });
  const client = connect(t);
  const sender = client.createSender(queue);
  await sender.sendMessages({ body: "first", messageId: "a" });
  await sender.sendMessages({ body: "again", messageId: "a" });
  await sender.sendMessages([
    { body: "second", messageId: "b" },
    { body: "again", messageId: "a" },
    { body: "third", messageId: "c" },
  ]);
  const receiver = client.createReceiver(queue, { receiveMode: "receiveAndDelete" });
  const received = await receiver.receiveMessages(5, { maxWaitTimeInMs: 2000 });
  assert.deepEqual(bodies(received), ["first", "second", "third"]);
});
