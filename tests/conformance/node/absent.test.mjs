// What is not there is reported at once, by the host and path that the client asked for.

import assert from "node:assert/strict";
import { test } from "node:test";

import { connect, makeQueue, administration, until } from "./support.mjs";

function isNotFound(client, error, path) {
  assert.equal(error.code, "MessagingEntityNotFound", error.message);
  // Without this text the SDK tries again, half a minute later each time (wire §7.2).
  assert.equal(error.retryable, false);
  const expected = `The messaging entity 'sb://${client.fullyQualifiedNamespace}/${path}' could not be found.`;
  assert.ok(error.message.includes(expected), error.message);
  return true;
}

// The SDK's own retries are on: an error that it takes for a passing one is reported too late.
const patient = (t) => connect(t, { retryOptions: {} });

for (const [name, path, open] of [
  ["a queue", "Some-Queue", (client) => client.createReceiver("Some-Queue")],
  ["a topic", "Some-Topic/Subscriptions/One", (client) => client.createReceiver("Some-Topic", "One")],
  [
    "the dead letters of a queue",
    "Some-Queue/$DeadLetterQueue",
    (client) => client.createReceiver("Some-Queue", { subQueueType: "deadLetter" }),
  ],
]) {
  test(`a stream from ${name} that is not there`, async (t) => {
    const client = patient(t);
    const receiver = open(client);
    const error = await new Promise((resolve) => {
      receiver.subscribe({
        processMessage: async () => {},
        processError: async (args) => resolve(args.error),
      });
    });
    isNotFound(client, error, path);
    await receiver.close();
  });
}

test("every other use of a queue that is not there", async (t) => {
  const client = patient(t);
  const told = (path) => (error) => isNotFound(client, error, path);
  const [receiver, sender] = [client.createReceiver("Some-Queue"), client.createSender("Some-Queue")];
  await assert.rejects(receiver.receiveMessages(1), told("Some-Queue"));
  await assert.rejects(receiver.peekMessages(1), told("Some-Queue/$management"));
  await assert.rejects(sender.sendMessages({ body: "x" }), told("Some-Queue"));
  await assert.rejects(sender.scheduleMessages({ body: "x" }, new Date()), told("Some-Queue/$management"));
  await assert.rejects(client.acceptSession("Some-Queue", "s"), told("Some-Queue"));
});

test("a stream whose queue is deleted hears of it", async (t) => {
  const client = patient(t);
  const queue = await makeQueue();
  const receiver = client.createReceiver(queue);
  const errors = [];
  let opened = false;
  await client.createSender(queue).sendMessages({ body: "x" });
  receiver.subscribe({
    processMessage: async () => {
      opened = true;
    },
    processError: async (args) => errors.push(args.error),
  });
  await until("the stream runs", () => opened);
  await administration().deleteQueue(queue);
  await until("it is reported", () => errors.some((error) => error.code === "MessagingEntityNotFound"));
  isNotFound(client, errors.find((error) => error.code === "MessagingEntityNotFound"), queue);
  await receiver.close();
});
