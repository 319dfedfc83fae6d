// Message sessions: accepted by name or as they come, in order, with a lock and a state.

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  administration, bodies, connect, makeQueue, makeSubscription, makeTopic, receiveAll, receiveNone,
  receiveOne, until, untilPast, withCode,
} from "./support.mjs";

const sessional = { requiresSession: true };
const unrenewed = { maxAutoLockRenewalDurationInMs: 0 };

async function withMessages(t, messages, properties = {}) {
  const queue = await makeQueue({ ...sessional, ...properties });
  const client = connect(t);
  await client.createSender(queue).sendMessages(messages);
  return { queue, client };
}

test("a named session gives its own messages in order", async (t) => {
  const sent = Array.from({ length: 10 }, (_, n) => ({ body: n, sessionId: `s${n % 2}` }));
  const { queue, client } = await withMessages(t, sent);
  const receiver = await client.acceptSession(queue, "s1");
  assert.equal(receiver.sessionId, "s1");
  const left = receiver.sessionLockedUntilUtc.getTime() - Date.now();
  assert.ok(left > 0 && left <= 60_000, `${left} ms left`);
  const messages = await receiveAll(receiver, 5);
  assert.deepEqual(bodies(messages), [1, 3, 5, 7, 9]);
  for (const message of messages) await receiver.completeMessage(message);
  await receiveNone(receiver);
});

test("the next session is waited for and other links go on", async (t) => {
  // wire §10.35
  const queue = await makeQueue(sessional);
  const client = connect(t);
  const waiting = client.acceptNextSession(queue);
  const sender = client.createSender(queue);
  await sender.sendMessages({ body: "late", sessionId: "new" });
  const receiver = await waiting;
  assert.equal(receiver.sessionId, "new");
  assert.equal((await receiveOne(receiver)).body, "late");
});

test("a wait for the next session ends in time", async (t) => {
  const queue = await makeQueue(sessional);
  const client = connect(t, { retryOptions: { maxRetries: 0, timeoutInMs: 2_000 } });
  const began = Date.now();
  await assert.rejects(client.acceptNextSession(queue), withCode("ServiceTimeout"));
  assert.ok(Date.now() - began < 10_000);
});

test("a session that is held cannot be accepted", async (t) => {
  const { queue, client } = await withMessages(t, { body: "x", sessionId: "mine" });
  const receiver = await client.acceptSession(queue, "mine");
  await assert.rejects(
    connect(t).acceptSession(queue, "mine"), withCode("SessionCannotBeLocked"));
  await receiver.close();
  const next = await client.acceptSession(queue, "mine");
  assert.equal((await receiveOne(next)).deliveryCount, 0);
});

test("a receive without waiting drains a session at once", async (t) => {
  // wire §3.5
  const { queue, client } = await withMessages(t, { body: "x", sessionId: "mine" });
  const receiver = await client.acceptSession(queue, "mine");
  await receiver.completeMessage(await receiveOne(receiver));
  const began = Date.now();
  for (let n = 0; n < 10; n += 1) {
    assert.deepEqual(await receiver.receiveMessages(5, { maxWaitTimeInMs: 1 }), []);
  }
  assert.ok(Date.now() - began < 1_500, "no drain ran into its time-out of 200 ms");
  await client.createSender(queue).sendMessages({ body: "y", sessionId: "mine" });
  assert.equal((await receiveOne(receiver)).body, "y");
});

test("state is kept with the session", async (t) => {
  const queue = await makeQueue(sessional);
  const client = connect(t);
  const receiver = await client.acceptSession(queue, "mine");
  assert.equal(await receiver.getSessionState(), null);
  await receiver.setSessionState(Buffer.from("one"));
  await receiver.setSessionState(Buffer.from("two"));
  await receiver.close();
  const again = await client.acceptSession(queue, "mine");
  assert.equal((await again.getSessionState()).toString(), "two");
  await again.setSessionState(null);
  assert.equal(await again.getSessionState(), null);
});

test("a lock that runs out ends the receiver and counts", async (t) => {
  const { queue, client } = await withMessages(
    t, { body: "x", sessionId: "mine" }, { lockDuration: "PT5S" });
  const receiver = await client.acceptSession(queue, "mine", unrenewed);
  const message = await receiveOne(receiver);
  await untilPast(receiver.sessionLockedUntilUtc);
  await assert.rejects(receiver.completeMessage(message), withCode("SessionLockLost"));
  const again = await until("the session is free", () =>
    client.acceptSession(queue, "mine", unrenewed).catch(() => undefined));
  assert.equal((await receiveOne(again)).deliveryCount, 1);
});

test("renewing a session's lock keeps it", async (t) => {
  const { queue, client } = await withMessages(
    t, { body: "x", sessionId: "mine" }, { lockDuration: "PT5S" });
  const receiver = await client.acceptSession(queue, "mine", unrenewed);
  const message = await receiveOne(receiver);
  const first = receiver.sessionLockedUntilUtc;
  await untilPast(new Date(first.getTime() - 2_500));
  const renewed = await receiver.renewSessionLock();
  assert.ok(renewed > first);
  await untilPast(first);
  await receiver.completeMessage(message);
});

test("a stream of a session delivers in order", async (t) => {
  const sent = Array.from({ length: 30 }, (_, n) => ({ body: n, sessionId: "mine" }));
  const { queue, client } = await withMessages(t, sent);
  const receiver = await client.acceptSession(queue, "mine");
  const got = [];
  receiver.subscribe({
    processMessage: async (message) => {
      got.push(message.body);
    },
    processError: async (args) => assert.fail(args.error),
  });
  await until("all came", () => got.length === 30);
  assert.deepEqual(got, sent.map((each) => each.body));
  await until("all are gone", async () =>
    (await administration().getQueueRuntimeProperties(queue)).totalMessageCount === 0);
});

test("messages of a session are abandoned, deferred and dead-lettered", async (t) => {
  const sent = ["a", "b", "c"].map((body) => ({ body, sessionId: "mine" }));
  const { queue, client } = await withMessages(t, sent);
  const receiver = await client.acceptSession(queue, "mine");
  await receiver.abandonMessage(await receiveOne(receiver), { changed: true });
  const again = await receiveOne(receiver);
  assert.equal(again.body, "a");
  assert.equal(again.deliveryCount, 1);
  assert.deepEqual(again.applicationProperties, { changed: true });
  await receiver.deferMessage(again);
  await receiver.deadLetterMessage(await receiveOne(receiver), { deadLetterReason: "why" });
  assert.equal((await receiveOne(receiver)).body, "c");

  const [deferred] = await receiver.receiveDeferredMessages(again.sequenceNumber);
  assert.equal(deferred.body, "a");
  await receiver.completeMessage(deferred);
  const dead = await receiveOne(client.createReceiver(queue, { subQueueType: "deadLetter" }));
  assert.equal(dead.sessionId, "mine");
  assert.equal(dead.deadLetterReason, "why");
});

test("receive and delete works in a session", async (t) => {
  const { queue, client } = await withMessages(
    t, [{ body: 1, sessionId: "mine" }, { body: 2, sessionId: "mine" }]);
  const receiver = await client.acceptSession(queue, "mine", { receiveMode: "receiveAndDelete" });
  assert.deepEqual(bodies(await receiveAll(receiver, 2)), [1, 2]);
  await receiver.close();
  const next = await client.acceptSession(queue, "mine");
  await receiveNone(next);
});

test("a peek shows the messages of its session", async (t) => {
  const sent = Array.from({ length: 6 }, (_, n) => ({ body: n, sessionId: `s${n % 2}` }));
  const { queue, client } = await withMessages(t, sent);
  const receiver = await client.acceptSession(queue, "s0");
  assert.deepEqual(bodies(await receiver.peekMessages(10)), [0, 2, 4]);
});

test("the wrong kind of receiver or message is refused", async (t) => {
  const queue = await makeQueue(sessional);
  const client = connect(t);
  await assert.rejects(
    client.createReceiver(queue).receiveMessages(1, { maxWaitTimeInMs: 1_000 }),
    /non-sessionful message receiver/);
  await assert.rejects(
    client.createSender(queue).sendMessages({ body: "x" }), /The SessionId was not set/);
  // whatever the reason, the SDK says that the session is held by another
  await assert.rejects(
    client.acceptSession(await makeQueue(), "mine"), withCode("SessionCannotBeLocked"));
});

test("a subscription with sessions", async (t) => {
  const topic = await makeTopic();
  const subscription = await makeSubscription(topic, sessional);
  const client = connect(t);
  await client.createSender(topic).sendMessages([
    { body: "x", sessionId: "mine" }, { body: "y", sessionId: "mine" }]);
  const receiver = await client.acceptNextSession(topic, subscription);
  assert.equal(receiver.sessionId, "mine");
  assert.deepEqual(bodies(await receiveAll(receiver, 2)), ["x", "y"]);
});

test("an empty session id contradicts no partition key", async (t) => {
  // R-PART-12. The SDK cannot accept the session with that name; the one for Python can.
  const keyed = { body: "x", sessionId: "", partitionKey: "key" };
  for (const properties of [{}, sessional]) {
    const queue = await makeQueue(properties);
    const client = connect(t);
    const sender = client.createSender(queue);
    await sender.sendMessages(keyed);
    await sender.scheduleMessages(keyed, new Date());
    const found = await client.createReceiver(queue).peekMessages(10);
    assert.deepEqual(
      found.map((message) => [message.sessionId, message.partitionKey]),
      [["", "key"], ["", "key"]],
    );
  }
});
