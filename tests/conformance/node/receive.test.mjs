// Receiving: waiting and not waiting, drain, streams, peek, competing receivers.

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  administration, bodies, connect, Long, makeQueue, receiveAll, receiveNone, receiveOne, until,
} from "./support.mjs";

test("a receive without waiting returns what is ready, or nothing, at once", async (t) => {
  // R-DLQ-09; wire §3.5: the SDK drains, and the same link works afterwards
  const queue = await makeQueue();
  const client = connect(t);
  const receiver = client.createReceiver(queue);
  await receiver.receiveMessages(1, { maxWaitTimeInMs: 1 });

  const began = Date.now();
  for (let n = 0; n < 10; n += 1) {
    assert.deepEqual(await receiver.receiveMessages(5, { maxWaitTimeInMs: 0 }), []);
  }
  assert.ok(Date.now() - began < 1_500, "no drain ran into its time-out of 200 ms");

  await client.createSender(queue).sendMessages([{ body: 1 }, { body: 2 }]);
  assert.deepEqual(bodies(await receiver.receiveMessages(5, { maxWaitTimeInMs: 0 })), [1, 2]);
});

test("the founding loop: receive without waiting and abandon, until the queue is empty", async (t) => {
  // R-DLQ-09, R-SETTLE-08
  const queue = await makeQueue();
  const client = connect(t);
  await client.createSender(queue).sendMessages({ body: "poison" });

  const receiver = client.createReceiver(queue);
  const counts = [];
  for (;;) {
    const messages = await receiver.receiveMessages(1, { maxWaitTimeInMs: 0 });
    if (messages.length === 0) break;
    counts.push(messages[0].deliveryCount);
    await receiver.abandonMessage(messages[0]);
  }
  assert.deepEqual(counts, Array.from({ length: 10 }, (_, n) => n));

  const dead = await receiveOne(client.createReceiver(queue, { subQueueType: "deadLetter" }));
  assert.equal(dead.body, "poison");
  assert.equal(dead.deadLetterReason, "MaxDeliveryCountExceeded");
  assert.equal(dead.deliveryCount, 10);
});

test("a receive of many returns the few that are there and drains the rest of its credit", async (t) => {
  // wire §3.5
  const queue = await makeQueue();
  const client = connect(t);
  await client.createSender(queue).sendMessages([{ body: 1 }, { body: 2 }]);
  const receiver = client.createReceiver(queue);
  assert.deepEqual(bodies(await receiver.receiveMessages(50, { maxWaitTimeInMs: 5_000 })), [1, 2]);

  // the 48 credits that were left are gone: another receiver gets what comes next
  await client.createSender(queue).sendMessages({ body: 3 });
  assert.equal((await receiveOne(client.createReceiver(queue))).body, 3);
});

test("more than 2048 messages are received and completed over one session", async (t) => {
  // wire §10.25: rhea's ring of deliveries
  const queue = await makeQueue({ lockDuration: "PT1M" });
  const client = connect(t);
  const sender = client.createSender(queue);
  for (let n = 0; n < 3; n += 1) {
    await sender.sendMessages(Array.from({ length: 1000 }, () => ({ body: "x" })));
  }
  const receiver = client.createReceiver(queue);
  const held = await receiveAll(receiver, 2000);
  assert.equal(held.length, 2000);
  await Promise.all(held.map((message) => receiver.completeMessage(message)));
  const rest = await receiveAll(receiver, 1000);
  await Promise.all(rest.map((message) => receiver.completeMessage(message)));
  const { totalMessageCount } = await administration().getQueueRuntimeProperties(queue);
  assert.equal(totalMessageCount, 0);
});

test("a stream of messages is handled and completed by itself", async (t) => {
  // R-PRE-01: the handler style
  const queue = await makeQueue();
  const client = connect(t);
  await client.createSender(queue).sendMessages(Array.from({ length: 30 }, (_, n) => ({ body: n })));

  const seen = [];
  const receiver = client.createReceiver(queue);
  const subscription = receiver.subscribe(
    {
      processMessage: async (message) => { seen.push(message.body); },
      processError: async ({ error }) => assert.fail(error),
    },
    { maxConcurrentCalls: 5 },
  );
  await until("all are handled and completed", async () => {
    const { totalMessageCount } = await administration().getQueueRuntimeProperties(queue);
    return seen.length === 30 && totalMessageCount === 0;
  });
  await subscription.close();
  assert.deepEqual(seen.toSorted((a, b) => a - b), Array.from({ length: 30 }, (_, n) => n));
});

test("a handler that throws abandons the message until it is dead-lettered", async (t) => {
  // R-SETTLE-08
  const queue = await makeQueue({ maxDeliveryCount: 3 });
  const client = connect(t);
  await client.createSender(queue).sendMessages({ body: "poison" });

  let tries = 0;
  const subscription = client.createReceiver(queue).subscribe({
    processMessage: async () => {
      tries += 1;
      throw new Error("cannot digest this");
    },
    processError: async () => {},
  });
  const dead = await receiveOne(client.createReceiver(queue, { subQueueType: "deadLetter" }), 15_000);
  await subscription.close();
  assert.equal(tries, 3);
  assert.equal(dead.deadLetterReason, "MaxDeliveryCountExceeded");
});

test("receive and delete takes the message off the queue", async (t) => {
  // R-SETTLE-05; wire §10.33: the SDK sends dispositions all the same
  const queue = await makeQueue();
  const client = connect(t);
  await client.createSender(queue).sendMessages([{ body: 1 }, { body: 2 }]);
  const receiver = client.createReceiver(queue, { receiveMode: "receiveAndDelete" });
  assert.equal((await receiveOne(receiver)).body, 1);
  assert.deepEqual(bodies(await receiver.peekMessages(10)), [2]);
  assert.equal((await receiveOne(receiver)).body, 2);
  await receiveNone(receiver);
});

test("two receivers share a queue without overlap", async (t) => {
  // R-SETTLE-06
  const queue = await makeQueue();
  const client = connect(t);
  await client.createSender(queue).sendMessages(Array.from({ length: 100 }, (_, n) => ({ body: n })));
  const work = async () => {
    const receiver = client.createReceiver(queue);
    const mine = [];
    for (;;) {
      const messages = await receiver.receiveMessages(10, { maxWaitTimeInMs: 1_500 });
      if (messages.length === 0) return mine;
      for (const message of messages) {
        mine.push(message.body);
        await receiver.completeMessage(message);
      }
    }
  };
  const shares = await Promise.all([work(), work()]);
  assert.deepEqual(
    shares.flat().toSorted((a, b) => a - b),
    Array.from({ length: 100 }, (_, n) => n),
  );
});

test("peek pages through active, locked, deferred and scheduled messages", async (t) => {
  // semantics B §10
  const queue = await makeQueue();
  const client = connect(t);
  const sender = client.createSender(queue);
  await sender.sendMessages([{ body: "deferred" }, { body: "locked" }]);
  await sender.scheduleMessages({ body: "scheduled" }, new Date(Date.now() + 3_600_000));
  await sender.sendMessages({ body: "active" });
  const receiver = client.createReceiver(queue);
  const [deferred] = await receiveAll(receiver, 2);
  await receiver.deferMessage(deferred);

  const first = await receiver.peekMessages(3, { fromSequenceNumber: Long.ZERO });
  assert.deepEqual(bodies(first), ["deferred", "locked", "scheduled"]);
  assert.deepEqual(first.map((message) => message.state), ["deferred", "active", "scheduled"]);
  assert.deepEqual(bodies(await receiver.peekMessages(3)), ["active"]);
  assert.deepEqual(await receiver.peekMessages(3), []);
  const again = await receiver.peekMessages(1, { fromSequenceNumber: first[1].sequenceNumber });
  assert.deepEqual(bodies(again), ["locked"]);
});

test("peek leaves out bodies where it is asked to", async (t) => {
  // wire §6.2
  const queue = await makeQueue();
  const client = connect(t);
  await client.createSender(queue).sendMessages({ body: "x".repeat(1_000), subject: "s" });
  const receiver = client.createReceiver(queue);
  const from = { fromSequenceNumber: Long.ZERO };
  for (const omitMessageBody of [true, false]) {
    const [found] = await receiver.peekMessages(1, { ...from, omitMessageBody });
    assert.equal(found.subject, "s");
    const size = found._rawAmqpMessage.deliveryAnnotations?.["omitted-message-body-size"];
    if (omitMessageBody) {
      assert.equal(found.body, undefined);
      assert.ok(Number(size) >= 1_000, `${size}`);
    } else {
      assert.equal(found.body.length, 1_000);
      assert.equal(size, undefined);
    }
  }
  assert.equal((await receiveOne(receiver)).body.length, 1_000);
});
