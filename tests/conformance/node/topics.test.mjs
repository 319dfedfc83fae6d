// Topics, subscriptions and rules through the administration client.

import assert from "node:assert/strict";
import { test } from "node:test";

import { administration, makeQueue, makeTopic } from "./support.mjs";

const ENDLESS = "P10675199DT2H48M5.4775807S";

async function makeSubscription(properties = {}) {
  const topic = await makeTopic();
  await administration().createSubscription(topic, "all", properties);
  return [topic, "all"];
}

async function all(pages) {
  const found = [];
  for await (const each of pages) found.push(each);
  return found;
}

// Of a topic the status is 200, as in Azure: the SDK finds an empty feed.
const missing = { code: "MessageEntityNotFoundError" };
const exists = { code: "MessageEntityAlreadyExistsError", statusCode: 409 };

test("a topic is created, read, updated, listed and deleted", async () => {
  const admin = administration();
  const topic = await makeTopic({ userMetadata: "notes", maxSizeInMegabytes: 2048 });
  const found = await admin.getTopic(topic);
  assert.equal(found.name, topic);
  assert.equal(found.userMetadata, "notes");
  assert.equal(found.maxSizeInMegabytes, 2048);
  assert.equal(found.status, "Active");
  assert.equal(found.autoDeleteOnIdle, ENDLESS);
  assert.equal(found.enablePartitioning, false);

  found.autoDeleteOnIdle = "PT10M";
  assert.equal((await admin.updateTopic(found)).autoDeleteOnIdle, "PT10M");
  assert.ok((await all(admin.listTopics())).some((each) => each.name === topic));
  assert.ok(!(await all(admin.listQueues())).some((each) => each.name === topic));
  await assert.rejects(admin.createTopic(topic), exists);
  await assert.rejects(admin.createQueue(topic), exists);

  await admin.deleteTopic(topic);
  assert.equal(await admin.topicExists(topic), false);
  await assert.rejects(admin.getTopic(topic), missing);
  await assert.rejects(admin.deleteTopic(topic), missing);
  await assert.rejects(admin.updateTopic(found), missing);
});

test("a subscription is created, read, updated, listed and deleted", async () => {
  const admin = administration();
  const [topic, name] = await makeSubscription({ lockDuration: "PT45S", maxDeliveryCount: 4 });
  const found = await admin.getSubscription(topic, name);
  assert.equal(found.topicName, topic);
  assert.equal(found.subscriptionName, name);
  assert.equal(found.lockDuration, "PT45S");
  assert.equal(found.maxDeliveryCount, 4);
  assert.equal(found.deadLetteringOnFilterEvaluationExceptions, true);
  assert.equal(found.defaultMessageTimeToLive, ENDLESS);

  found.maxDeliveryCount = 6;
  assert.equal((await admin.updateSubscription(found)).maxDeliveryCount, 6);
  await admin.createSubscription(topic, "another");
  const names = (await all(admin.listSubscriptions(topic))).map((each) => each.subscriptionName);
  assert.deepEqual(names, ["all", "another"]);
  const counts = await admin.getSubscriptionRuntimeProperties(topic, name);
  assert.equal(counts.totalMessageCount, 0);
  assert.equal(counts.activeMessageCount, 0);
  assert.equal((await admin.getTopicRuntimeProperties(topic)).subscriptionCount, 2);
  await assert.rejects(admin.createSubscription(topic, name), exists);

  await admin.deleteSubscription(topic, name);
  assert.equal(await admin.subscriptionExists(topic, name), false);
  await assert.rejects(admin.getSubscription(topic, name), missing);
  await assert.rejects(admin.updateSubscription(found), missing);
  await assert.rejects(admin.deleteSubscription(topic, name), missing);
  await assert.rejects(admin.deleteSubscription("no-such-topic", name), missing);
});

test("a subscription forwards, and stops to", async () => {
  const admin = administration();
  const queue = await makeQueue();
  const [topic, name] = await makeSubscription({ forwardTo: queue });
  const found = await admin.getSubscription(topic, name);
  assert.ok(found.forwardTo.startsWith("sb://") && found.forwardTo.endsWith(`/${queue}`));
  found.forwardTo = undefined;
  assert.equal((await admin.updateSubscription(found)).forwardTo, undefined);
  await assert.rejects(makeSubscription({ forwardTo: "elsewhere" }), { statusCode: 400 });
});

test("rules come back with their types", async () => {
  const admin = administration();
  const [topic, name] = await makeSubscription();
  const filter = {
    correlationId: "c",
    subject: "l",
    applicationProperties: { text: "a", number: 1, flag: true, at: new Date("2020-07-05T11:12:13Z") },
  };
  await admin.createRule(topic, name, "correlation", filter);
  const rule = await admin.getRule(topic, name, "correlation");
  assert.deepEqual(
    { ...rule.filter.applicationProperties },
    { text: "a", number: 1, flag: true, at: new Date("2020-07-05T11:12:13Z") },
  );
  assert.equal(rule.filter.correlationId, "c");
  assert.equal(rule.filter.subject, "l");

  const sql = { sqlExpression: "a = @a", sqlParameters: { "@a": 7 } };
  const action = { sqlExpression: "SET b = 'x'" };
  await admin.createRule(topic, name, "sql", sql, action);
  const second = await admin.getRule(topic, name, "sql");
  assert.equal(second.filter.sqlExpression, "a = @a");
  assert.deepEqual({ ...second.filter.sqlParameters }, { "@a": 7 });
  assert.equal(second.action.sqlExpression, "SET b = 'x'");

  const names = (await all(admin.listRules(topic, name))).map((each) => each.name);
  assert.deepEqual(names, ["$Default", "correlation", "sql"]);
  await assert.rejects(admin.createRule(topic, name, "sql"), exists);
  second.filter = { sqlExpression: "1=0" };
  assert.equal((await admin.updateRule(topic, name, second)).filter.sqlExpression, "1=0");
  await admin.deleteRule(topic, name, "sql");
  await assert.rejects(admin.getRule(topic, name, "sql"), missing);
  await assert.rejects(admin.updateRule(topic, name, second), missing);
});

test("a subscription may come with a rule of its own", async () => {
  const admin = administration();
  const [topic, name] = await makeSubscription({
    defaultRuleOptions: { name: "first", filter: { sqlExpression: "a = 1" }, action: {} },
  });
  const [rule, ...others] = await all(admin.listRules(topic, name));
  assert.equal(rule.name, "first");
  assert.equal(rule.filter.sqlExpression, "a = 1");
  assert.deepEqual(others, []);
});
