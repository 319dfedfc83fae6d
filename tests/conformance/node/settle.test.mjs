// Verdicts on a message, with the property changes that only this SDK offers; locks and their loss.

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  administration, bodies, connect, makeQueue, receiveAll, receiveNone, receiveOne, until, untilPast,
  withCode,
} from "./support.mjs";

const deadLetters = { subQueueType: "deadLetter" };
// Left to itself, this SDK renews the lock of every message it hands out.
const unrenewed = { maxAutoLockRenewalDurationInMs: 0 };

async function withMessage(t, properties = {}, message = { body: "x" }, options = {}) {
  const queue = await makeQueue(properties);
  const client = connect(t);
  await client.createSender(queue).sendMessages(message);
  return { queue, client, receiver: client.createReceiver(queue, options) };
}

test("abandon changes properties and raises the count", async (t) => {
  // R-SETTLE-07, R-SETTLE-09
  const sent = { body: "x", applicationProperties: { kept: 1, changed: "old" } };
  const { receiver } = await withMessage(t, {}, sent);
  const message = await receiveOne(receiver);
  await receiver.abandonMessage(message, { changed: "new", added: true });

  const again = await receiveOne(receiver);
  assert.deepEqual(again.applicationProperties, { kept: 1, changed: "new", added: true });
  assert.equal(again.deliveryCount, 1);
  assert.equal(again.body, "x");
  assert.ok(again.sequenceNumber.equals(message.sequenceNumber));
  await receiver.completeMessage(again);
});

test("dead-letter sets reason, description and properties", async (t) => {
  // R-SETTLE-09, R-DLQ-04
  const { queue, client, receiver } = await withMessage(t);
  await receiver.deadLetterMessage(await receiveOne(receiver), {
    deadLetterReason: "why",
    deadLetterErrorDescription: "in full",
    added: 7,
  });

  const dead = await receiveOne(client.createReceiver(queue, deadLetters));
  assert.equal(dead.deadLetterReason, "why");
  assert.equal(dead.deadLetterErrorDescription, "in full");
  assert.equal(dead.applicationProperties.added, 7);
  assert.equal(dead.deliveryCount, 0);
});

test("dead-letter without anything sets nothing", async (t) => {
  // R-DLQ-04
  const { queue, client, receiver } = await withMessage(t);
  await receiver.deadLetterMessage(await receiveOne(receiver));
  const dead = await receiveOne(client.createReceiver(queue, deadLetters));
  assert.equal(dead.deadLetterReason, undefined);
  assert.equal(dead.body, "x");
});

test("a dead letter cannot be dead-lettered again", async (t) => {
  // R-DLQ-02
  const { queue, client, receiver } = await withMessage(t);
  await receiver.deadLetterMessage(await receiveOne(receiver));
  const dead = client.createReceiver(queue, deadLetters);
  const message = await receiveOne(dead);
  await assert.rejects(dead.deadLetterMessage(message), withCode("GeneralError"));
});

test("defer changes properties, and the message is fetched by its number", async (t) => {
  // R-SETTLE-09
  const { receiver } = await withMessage(t);
  const message = await receiveOne(receiver);
  await receiver.deferMessage(message, { later: "please" });
  await receiveNone(receiver);

  const [fetched] = await receiver.receiveDeferredMessages(message.sequenceNumber);
  assert.equal(fetched.body, "x");
  assert.equal(fetched.deliveryCount, 1);
  assert.equal(fetched.state, "deferred");
  assert.deepEqual(fetched.applicationProperties, { later: "please" });
  await receiver.renewMessageLock(fetched);
  await receiver.completeMessage(fetched);
  await assert.rejects(
    receiver.receiveDeferredMessages(message.sequenceNumber), withCode("MessageNotFound"),
  );
});

test("a deferred message given back is still deferred, with the changes", async (t) => {
  // R-SETTLE-07
  const { receiver } = await withMessage(t);
  const message = await receiveOne(receiver);
  await receiver.deferMessage(message);
  const [first] = await receiver.receiveDeferredMessages([message.sequenceNumber]);
  await receiver.abandonMessage(first, { tried: 1 });
  const [second] = await receiver.receiveDeferredMessages([message.sequenceNumber]);
  assert.equal(second.deliveryCount, 2);
  assert.deepEqual(second.applicationProperties, { tried: 1 });
  await receiver.deadLetterMessage(second, { deadLetterReason: "enough" });
});

test("property changes that outgrow the header limit dead-letter the message", async (t) => {
  // R-DLQ-05: HeaderSizeExceeded is for headers that grow inside the broker
  const { queue, client, receiver } = await withMessage(t);
  const dead = client.createReceiver(queue, deadLetters);
  for (const name of ["a", "b", "c"]) {
    const [message] = await receiver.receiveMessages(1, { maxWaitTimeInMs: 2_000 });
    if (message === undefined) break;
    await receiver.abandonMessage(message, { [name]: "w".repeat(30_000) });
  }
  const message = await receiveOne(dead);
  assert.equal(message.deadLetterReason, "HeaderSizeExceeded");
  assert.ok(message.deadLetterErrorDescription);
  assert.equal(message.body, "x");
});

test("the SDK renews a lock by itself", async (t) => {
  // R-SETTLE-06
  const { receiver } = await withMessage(t, { lockDuration: "PT5S" });
  const message = await receiveOne(receiver);
  await untilPast(message.lockedUntilUtc, 2_000);
  await receiver.completeMessage(message);
});

test("a message sent without an id gets one, and keeps it", async (t) => {
  // The SDK cannot settle a message that has none: it keys its lock renewal by it.
  const { receiver } = await withMessage(t);
  const message = await receiveOne(receiver);
  assert.ok(message.messageId);
  await receiver.abandonMessage(message);
  const again = await receiveOne(receiver);
  assert.equal(again.messageId, message.messageId);
  await receiver.completeMessage(again);
});

test("a renewed lock is extended", async (t) => {
  // R-SETTLE-06
  const { receiver } = await withMessage(t, { lockDuration: "PT5S" }, { body: "x" }, unrenewed);
  const message = await receiveOne(receiver);
  const ends = message.lockedUntilUtc;
  await untilPast(ends, -2_000);
  const renewed = await receiver.renewMessageLock(message);
  assert.ok(renewed.getTime() >= ends.getTime() + 2_000);
  await untilPast(ends);
  await receiver.completeMessage(message);
});

test("every verdict after the lock is lost is refused", async (t) => {
  // R-SETTLE-07, R-SETTLE-10; this SDK does not look at its own clock first
  const queue = await makeQueue({ lockDuration: "PT5S" });
  const client = connect(t);
  await client.createSender(queue).sendMessages([1, 2, 3, 4].map((body) => ({ body })));
  const receiver = client.createReceiver(queue, unrenewed);
  const [one, two, three, four] = await receiveAll(receiver, 4);
  await untilPast(four.lockedUntilUtc);

  const lost = withCode("MessageLockLost");
  await assert.rejects(receiver.completeMessage(one), lost);
  await assert.rejects(receiver.abandonMessage(two), lost);
  await assert.rejects(receiver.deferMessage(three), lost);
  await assert.rejects(receiver.deadLetterMessage(four), lost);
  const again = await receiveAll(client.createReceiver(queue), 4);
  assert.deepEqual(bodies(again), [1, 2, 3, 4]);
  assert.deepEqual(again.map((message) => message.deliveryCount), [1, 1, 1, 1]);
});

test("renewing after the lock is lost is refused", async (t) => {
  // R-SETTLE-10
  const { receiver } = await withMessage(t, { lockDuration: "PT5S" }, { body: "x" }, unrenewed);
  const message = await receiveOne(receiver);
  await untilPast(message.lockedUntilUtc);
  await assert.rejects(receiver.renewMessageLock(message), withCode("MessageLockLost"));
});

test("a message is settled after its link was closed", async (t) => {
  // R-SETTLE-10: through $management, as the SDK itself does it
  const queue = await makeQueue();
  const client = connect(t);
  await client.createSender(queue).sendMessages([1, 2, 3, 4].map((body) => ({ body })));
  const gone = client.createReceiver(queue);
  const [one, two, three, four] = await receiveAll(gone, 4);
  await gone.close();

  const receiver = client.createReceiver(queue);
  await receiveNone(receiver);
  await receiver.completeMessage(one);
  await receiver.abandonMessage(two);
  await receiver.deferMessage(three);
  await receiver.deadLetterMessage(four);

  const left = await receiver.peekMessages(10);
  assert.deepEqual(left.map(({ body, state }) => [body, state]), [[2, "active"], [3, "deferred"]]);
  assert.deepEqual(bodies(await client.createReceiver(queue, deadLetters).peekMessages(10)), [4]);
});

test("a message is settled after its connection was closed in order", async (t) => {
  // R-SETTLE-10: an orderly close does not lose the lock
  const queue = await makeQueue();
  const client = connect(t);
  await client.createSender(queue).sendMessages({ body: "x" });
  const first = connect(t);
  const message = await receiveOne(first.createReceiver(queue));
  await first.close();

  const receiver = client.createReceiver(queue);
  await receiver.renewMessageLock(message);
  await receiver.completeMessage(message);
  assert.deepEqual(await receiver.peekMessages(1), []);
});

test("an expired message is dead-lettered where the queue says so", async (t) => {
  // R-DLQ-05, R-DLQ-06
  const sent = { body: "old", timeToLive: 1_000 };
  const { queue, client, receiver } = await withMessage(
    t, { deadLetteringOnMessageExpiration: true }, sent,
  );
  await untilPast(new Date(Date.now() + 1_000));
  await receiveNone(receiver);
  const dead = await receiveOne(client.createReceiver(queue, deadLetters));
  assert.equal(dead.deadLetterReason, "TTLExpiredException");
});

test("a message in the dead-letter queue is peeked, abandoned and completed", async (t) => {
  // R-DLQ-02: the count does not rise
  const { queue, client, receiver } = await withMessage(t);
  await receiver.deadLetterMessage(await receiveOne(receiver));
  const dead = client.createReceiver(queue, deadLetters);
  assert.deepEqual(bodies(await dead.peekMessages(5)), ["x"]);
  await dead.abandonMessage(await receiveOne(dead));
  const again = await receiveOne(dead);
  assert.equal(again.deliveryCount, 0);
  await dead.completeMessage(again);
  await until("it is gone", async () => {
    const counts = await administration().getQueueRuntimeProperties(queue);
    return counts.deadLetterMessageCount === 0;
  });
});
