// What comes back from the administration client, as Azure has it.

import assert from "node:assert/strict";
import { test } from "node:test";

import { administration, connect, makeQueue, makeSubscription, makeTopic, withCode } from "./support.mjs";

test("a destination comes back as it was sent", async () => {
  const admin = administration();
  const target = await makeQueue();
  for (const scheme of ["sb", "https"]) {
    const destination = `${scheme}://Some.Host/${target.toUpperCase()}`;
    const queue = await makeQueue({ forwardTo: destination, forwardDeadLetteredMessagesTo: destination });
    const found = await admin.getQueue(queue);
    assert.equal(found.forwardTo, destination);
    assert.equal(found.forwardDeadLetteredMessagesTo, destination);
    assert.equal((await admin.updateQueue(found)).forwardTo, destination);
  }
});

test("what is not there is not found", async () => {
  const admin = administration();
  const notFound = { code: "MessageEntityNotFoundError" };
  await assert.rejects(admin.getTopic("node-none"), notFound);
  await assert.rejects(admin.getTopicRuntimeProperties("node-none"), notFound);
  await assert.rejects(admin.getQueueRuntimeProperties("node-none"), notFound);
  assert.equal(await admin.topicExists("node-none"), false);
  assert.equal(await admin.queueExists("node-none"), false);
  assert.equal(await admin.subscriptionExists(await makeTopic(), "none"), false);
});

test("a subscription was accessed when it was made", async () => {
  const topic = await makeTopic();
  const made = await administration().getSubscriptionRuntimeProperties(topic, await makeSubscription(topic));
  assert.equal(made.accessedAt.getTime(), made.createdAt.getTime());
  assert.equal(made.modifiedAt.getTime(), made.createdAt.getTime());
});

test("authorization rules come back as they were sent", async () => {
  const key = "MTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTE=";
  const rule = {
    claimType: "SharedAccessKey",
    accessRights: ["Manage", "Send", "Listen"],
    keyName: "own",
    primaryKey: key,
    secondaryKey: key,
  };
  const queue = await makeQueue({ authorizationRules: [rule] });
  assert.deepEqual((await administration().getQueue(queue)).authorizationRules, [rule]);
});

test("a queue takes messages up to its own size", async (t) => {
  const queue = await makeQueue({ maxMessageSizeInKilobytes: 2048 });
  assert.equal((await administration().getQueue(queue)).maxMessageSizeInKilobytes, 2048);
  const client = connect(t);
  const sender = client.createSender(queue);
  const body = Buffer.alloc(1_500_000, "large");
  await sender.sendMessages({ body });
  await assert.rejects(sender.sendMessages({ body: Buffer.alloc(2_100_000) }), withCode("MessageSizeExceeded"));
  const [message] = await client.createReceiver(queue).receiveMessages(1);
  assert.ok(body.equals(message.body));
});
