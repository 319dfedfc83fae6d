// Topics in use: publishing, subscriptions, filters and actions, rules over AMQP, forwarding.

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  administration, bodies, connect, Long, makeQueue, makeSubscription, makeTopic, receiveAll, receiveNone, receiveOne,
  until, withCode,
} from "./support.mjs";

async function all(rules) {
  const found = [];
  for await (const each of rules) found.push(each);
  return found;
}

test("every subscription gets every message in order", async (t) => {
  const topic = await makeTopic();
  const subscriptions = [await makeSubscription(topic), await makeSubscription(topic), await makeSubscription(topic)];
  const client = connect(t);
  const sender = client.createSender(topic);
  await sender.sendMessages(Array.from({ length: 20 }, (_, n) => ({ body: n })));
  await sender.sendMessages({ body: 20 });
  const batch = await sender.createMessageBatch();
  batch.tryAddMessage({ body: 21 });
  await sender.sendMessages(batch);

  for (const subscription of subscriptions) {
    const receiver = client.createReceiver(topic, subscription, { receiveMode: "receiveAndDelete" });
    assert.deepEqual(bodies(await receiveAll(receiver, 22)), Array.from({ length: 22 }, (_, n) => n));
    await receiver.close();
  }
});

test("subscriptions settle without each other", async (t) => {
  const topic = await makeTopic();
  const [one, two] = [await makeSubscription(topic), await makeSubscription(topic, { maxDeliveryCount: 1 })];
  const client = connect(t);
  await client.createSender(topic).sendMessages({ body: "x", applicationProperties: { n: 1 } });

  const first = client.createReceiver(topic, one);
  await first.completeMessage(await receiveOne(first));
  await receiveNone(first);
  const second = client.createReceiver(topic, two);
  await second.abandonMessage(await receiveOne(second));
  const dead = await receiveOne(client.createReceiver(topic, two, { subQueueType: "deadLetter" }));
  assert.equal(dead.deadLetterReason, "MaxDeliveryCountExceeded");
  assert.deepEqual(dead.applicationProperties.n, 1);
  const counts = await administration().getSubscriptionRuntimeProperties(topic, two);
  assert.equal(counts.deadLetterMessageCount, 1);
  assert.equal((await administration().getSubscriptionRuntimeProperties(topic, one)).totalMessageCount, 0);
});

test("a subscription defers, renews, changes properties, peeks and streams", async (t) => {
  const topic = await makeTopic();
  const subscription = await makeSubscription(topic);
  const client = connect(t);
  await client.createSender(topic).sendMessages([{ body: 0 }, { body: 1 }, { body: 2 }]);
  const receiver = client.createReceiver(topic, subscription);
  const [first, second] = await receiveAll(receiver, 2);
  assert.ok((await receiver.renewMessageLock(first)) > new Date());
  await receiver.deferMessage(first, { reason: "later" });
  await receiver.abandonMessage(second, { tried: 1 });
  assert.deepEqual(
    (await receiver.peekMessages(5, { fromSequenceNumber: Long.ZERO })).map((each) => [each.body, each.state]),
    [[0, "deferred"], [1, "active"], [2, "active"]],
  );
  const [deferred] = await receiver.receiveDeferredMessages(first.sequenceNumber);
  assert.equal(deferred.applicationProperties.reason, "later");
  await receiver.completeMessage(deferred);

  const seen = [];
  const stream = receiver.subscribe({
    processMessage: async (message) => { seen.push([message.body, message.applicationProperties?.tried]); },
    processError: async ({ error }) => assert.fail(error),
  });
  await until("both have come", async () => seen.length === 2);
  await stream.close();
  assert.deepEqual(seen, [[1, 1], [2, undefined]]);
});

test("a scheduled message waits in the topic and can be peeked at there", async (t) => {
  // semantics B §4
  const topic = await makeTopic();
  const subscription = await makeSubscription(topic);
  const client = connect(t);
  const sender = client.createSender(topic);
  const due = new Date(Date.now() + 3_000);
  const numbers = await sender.scheduleMessages([{ body: "due" }, { body: "cancelled" }], due);
  const peeked = await client.createReceiver(topic).peekMessages(10);
  assert.deepEqual(peeked.map((each) => [each.body, each.state]), [["due", "scheduled"], ["cancelled", "scheduled"]]);
  assert.deepEqual(await client.createReceiver(topic, subscription).peekMessages(10), []);
  await sender.cancelScheduledMessages(numbers[1]);
  assert.equal((await administration().getTopicRuntimeProperties(topic)).scheduledMessageCount, 1);

  const receiver = client.createReceiver(topic, subscription);
  const message = await receiveOne(receiver);
  assert.equal(message.body, "due");
  assert.ok(Date.now() >= due.getTime());
  await receiveNone(receiver);
});

test("filters choose, and actions change only their own copy", async (t) => {
  // semantics A §1, §2, §3
  const topic = await makeTopic();
  const plain = await makeSubscription(topic);
  const sql = await makeSubscription(topic, {
    defaultRuleOptions: {
      name: "mine",
      filter: { sqlExpression: "quantity > @least AND sys.Label LIKE 'b%'", sqlParameters: { "@least": 10 } },
      action: { sqlExpression: "SET sys.Label = 'changed'; SET quantity = quantity * 2; REMOVE extra" },
    },
  });
  const correlation = await makeSubscription(topic, {
    defaultRuleOptions: { name: "c", filter: { subject: "red", applicationProperties: { quantity: 20 } } },
  });
  const client = connect(t);
  await client.createSender(topic).sendMessages(
    [["blue", 5], ["blue", 20], ["red", 20], ["red", 5]].map(([subject, quantity]) => ({
      body: `${subject} ${quantity}`, subject, applicationProperties: { quantity, extra: "e" },
    })),
  );

  const peek = (name) => client.createReceiver(topic, name).peekMessages(10);
  assert.deepEqual(bodies(await peek(plain)), ["blue 5", "blue 20", "red 20", "red 5"]);
  const [changed, ...others] = await peek(sql);
  assert.equal(changed.body, "blue 20");
  assert.equal(changed.subject, "changed");
  assert.deepEqual({ ...changed.applicationProperties }, { quantity: 40, RuleName: "mine" });
  assert.deepEqual(others, []);
  assert.deepEqual(bodies(await peek(correlation)), ["red 20"]);
});

test("rules are managed over AMQP", async (t) => {
  // wire §6.3
  const topic = await makeTopic();
  const subscription = await makeSubscription(topic);
  const client = connect(t);
  const rules = client.createRuleManager(topic, subscription);
  const [standard, ...none] = await all(rules.listRules());
  assert.equal(standard.name, "$Default");
  assert.equal(standard.filter.sqlExpression, "1=1");
  assert.deepEqual(none, []);
  await rules.createRule("nothing", { sqlExpression: "1=0" });
  assert.equal((await all(rules.listRules()))[1].filter.sqlExpression, "1=0");
  await rules.deleteRule("nothing");

  await rules.createRule("sql", { sqlExpression: "a = 1" }, { sqlExpression: "SET b = 2" });
  await rules.createRule("correlation", { correlationId: "c", subject: "s", applicationProperties: { p: "v" } });
  await assert.rejects(rules.createRule("sql", { sqlExpression: "a = 2" }));
  await assert.rejects(rules.createRule("wrong", { sqlExpression: "a = " }));
  await rules.deleteRule("$Default");
  await assert.rejects(rules.deleteRule("$Default"), withCode("MessagingEntityNotFound"));

  const [correlation, sql] = await all(rules.listRules());
  assert.equal(correlation.name, "correlation");
  assert.equal(correlation.filter.correlationId, "c");
  assert.equal(correlation.filter.subject, "s");
  assert.deepEqual({ ...correlation.filter.applicationProperties }, { p: "v" });
  assert.equal(sql.name, "sql");
  assert.equal(sql.filter.sqlExpression, "a = 1");
  assert.equal(sql.action.sqlExpression, "SET b = 2");
  const seen = await administration().getRule(topic, subscription, "sql");
  assert.equal(seen.filter.sqlExpression, "a = 1");

  await client.createSender(topic).sendMessages([
    { body: "neither" },
    { body: "sql", applicationProperties: { a: 1 } },
    { body: "correlation", correlationId: "c", subject: "s", applicationProperties: { p: "v" } },
  ]);
  const [first, second] = await client.createReceiver(topic, subscription).peekMessages(10);
  assert.deepEqual([first.body, first.applicationProperties.b], ["sql", 2]);
  assert.equal(second.body, "correlation");
});

test("many rules are listed page by page over AMQP", async (t) => {
  const topic = await makeTopic();
  const subscription = await makeSubscription(topic);
  const rules = connect(t).createRuleManager(topic, subscription);
  const names = Array.from({ length: 130 }, (_, n) => `rule-${String(n).padStart(3, "0")}`);
  for (const name of names) await rules.createRule(name, { subject: name });
  assert.deepEqual((await all(rules.listRules())).map((rule) => rule.name), ["$Default", ...names]);
});

test("messages are forwarded from a subscription to a queue and on to a topic", async (t) => {
  // semantics B §8
  const last = await makeTopic();
  const end = await makeSubscription(last);
  const queue = await makeQueue({ forwardTo: last });
  const topic = await makeTopic();
  await makeSubscription(topic, { forwardTo: queue });
  const client = connect(t);
  await client.createSender(topic).sendMessages([{ body: 1 }, { body: 2 }]);
  const receiver = client.createReceiver(last, end, { receiveMode: "receiveAndDelete" });
  assert.deepEqual(bodies(await receiveAll(receiver, 2)), [1, 2]);
});

test("dead letters of a subscription are collected in a queue", async (t) => {
  const queue = await makeQueue();
  const topic = await makeTopic();
  const subscription = await makeSubscription(topic, { forwardDeadLetteredMessagesTo: queue });
  const client = connect(t);
  await client.createSender(topic).sendMessages({ body: "bad" });
  const receiver = client.createReceiver(topic, subscription);
  await receiver.deadLetterMessage(await receiveOne(receiver), { deadLetterReason: "r" });
  const dead = await receiveOne(client.createReceiver(queue));
  assert.equal(dead.deadLetterReason, "r");
  assert.equal(dead.deadLetterSource, `${topic}/Subscriptions/${subscription}`);
});

test("a disabled topic takes nothing, and a disabled subscription gives nothing", async (t) => {
  // semantics B §11
  const admin = administration();
  const topic = await makeTopic();
  const subscription = await makeSubscription(topic);
  const client = connect(t);
  const disabled = withCode("MessagingEntityDisabled");
  const found = await admin.getSubscription(topic, subscription);
  await admin.updateSubscription({ ...found, status: "Disabled" });
  await client.createSender(topic).sendMessages({ body: "x" });
  await assert.rejects(client.createReceiver(topic, subscription).receiveMessages(1), disabled);
  await admin.updateSubscription({ ...found, status: "Active" });
  const parent = await admin.getTopic(topic);
  await admin.updateTopic({ ...parent, status: "Disabled" });
  await assert.rejects(client.createSender(topic).sendMessages({ body: "y" }), disabled);
  assert.equal((await receiveOne(client.createReceiver(topic, subscription))).body, "x");
});

test("an unknown topic or subscription is not found", async (t) => {
  const topic = await makeTopic();
  const client = connect(t);
  const missing = withCode("MessagingEntityNotFound");
  await assert.rejects(client.createSender("no-such-topic").sendMessages({ body: 1 }), missing);
  await assert.rejects(client.createReceiver(topic, "nobody").receiveMessages(1), missing);
  await assert.rejects(all(client.createRuleManager(topic, "nobody").listRules()), missing);
});
