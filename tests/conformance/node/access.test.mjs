// Keys of a single queue: written and read by the administration client, used by the others.

import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { test } from "node:test";

import { administration, bodies, connect, connectionString, makeQueue, withCode } from "./support.mjs";

const key = () => randomBytes(32).toString("base64");

function rule(keyName, accessRights, primaryKey = key(), secondaryKey = key()) {
  return { claimType: "SharedAccessKey", accessRights, keyName, primaryKey, secondaryKey };
}

const withKey = ({ keyName, primaryKey }) =>
  connectionString
    .replace("RootManageSharedAccessKey", keyName)
    .replace("SAS_KEY_VALUE", primaryKey);

test("authorization rules come back as they were written", async () => {
  // wire §9.4
  const rules = [rule("all", ["Manage", "Send", "Listen"]), rule("one", ["Listen"])];
  const queue = await makeQueue({ authorizationRules: rules });
  const admin = administration();
  const found = await admin.getQueue(queue);
  assert.deepEqual(found.authorizationRules, rules);

  found.authorizationRules = [rules[1]];
  assert.deepEqual((await admin.updateQueue(found)).authorizationRules, [rules[1]]);
  found.authorizationRules = [];
  assert.equal((await admin.updateQueue(found)).authorizationRules, undefined);
});

test("a rule that Azure refuses is refused", async () => {
  await assert.rejects(makeQueue({ authorizationRules: [rule("m", ["Manage"])] }), (error) => {
    assert.equal(error.statusCode, 400);
    assert.match(error.message, /Manage permission should also include Send and Listen/);
    return true;
  });
});

test("the key of a queue opens that queue, for what it may", async (t) => {
  // wire §2.4
  const [sends, listens] = [rule("sends", ["Send"]), rule("listens", ["Listen"])];
  const queue = await makeQueue({ authorizationRules: [sends, listens] });
  const other = await makeQueue();
  const denied = withCode("UnauthorizedAccess");

  const sender = connect(t, { connectionString: withKey(sends) });
  await sender.createSender(queue).sendMessages({ body: "x" });
  await assert.rejects(sender.createReceiver(queue).receiveMessages(1), denied);
  await assert.rejects(sender.createSender(other).sendMessages({ body: "x" }), denied);

  const receiver = connect(t, { connectionString: withKey(listens) });
  assert.deepEqual(bodies(await receiver.createReceiver(queue).peekMessages(1)), ["x"]);
  await assert.rejects(receiver.createSender(queue).sendMessages({ body: "y" }), denied);
  await assert.rejects(receiver.createReceiver(other).receiveMessages(1), denied);
});
