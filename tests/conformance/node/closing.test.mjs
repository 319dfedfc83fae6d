// A client that closes in good order keeps its locks until they run out (R-SETTLE-10).

import assert from "node:assert/strict";
import { test } from "node:test";

import { ServiceBusClient, connect, connectionString, makeQueue, receiveOne } from "./support.mjs";

for (const [call, ask] of [
  ["nothing more", async () => {}],
  ["a peek", async (receiver) => receiver.peekMessages(5)],
  ["a renewal", async (receiver, message) => receiver.renewMessageLock(message)],
]) {
  test(`locks outlive an orderly close after ${call}`, async (t) => {
    const queue = await makeQueue({ lockDuration: "PT2M" });
    const closing = new ServiceBusClient(connectionString);
    await closing.createSender(queue).sendMessages([{ body: "deferred" }, { body: "held" }]);
    const receiver = closing.createReceiver(queue);
    await receiver.deferMessage(await receiveOne(receiver));
    const held = await receiveOne(receiver);
    const number = held.sequenceNumber.sub(1);
    await receiver.receiveDeferredMessages(number);
    await ask(receiver, held);
    await closing.close();

    const another = connect(t).createReceiver(queue);
    const counts = (await another.peekMessages(5)).map(({ deliveryCount }) => deliveryCount);
    assert.deepEqual(counts, [1, 0]);
    await assert.rejects(another.receiveDeferredMessages(number), { code: "MessageNotFound" });
    assert.deepEqual(await another.receiveMessages(1, { maxWaitTimeInMs: 500 }), []);
  });
}
