// What the Node tests share: the SDK from tests/js, entities for each test, and clients that end with it.

import assert from "node:assert/strict";
import { createRequire } from "node:module";

const require = createRequire(new URL("../../js/package.json", import.meta.url));
const sdk = require("@azure/service-bus");
export const { ServiceBusClient, ServiceBusAdministrationClient, isServiceBusError } = sdk;
export const Long = require("long");

export const connectionString = process.env.POSTBUS_CONNECTION_STRING;
assert.ok(connectionString, "POSTBUS_CONNECTION_STRING names the server under test");
// The emulator's switch is what tells the SDK not to use TLS.
export const encryptedConnectionString = connectionString.replace(";UseDevelopmentEmulator=true", "");

let made = 0;

// 7.9.5 always asks by https, whatever the connection string says (wire §9.1).
export function administration() {
  const admin = new ServiceBusAdministrationClient(connectionString);
  const url = admin.getUrl.bind(admin);
  admin.getUrl = (...args) => url(...args).replace(/^https:/, "http:");
  const send = admin.sendRequest.bind(admin);
  admin.sendRequest = (request) => {
    request.allowInsecureConnection = true;
    return send(request);
  };
  return admin;
}

// The kind of queues and topics where a test says nothing.
const enablePartitioning = process.env.POSTBUS_TEST_KIND === "partitioned";

export async function makeQueue(properties = {}) {
  made += 1;
  const name = `node-${process.pid}-${made}`;
  await administration().createQueue(name, { enablePartitioning, ...properties });
  return name;
}

export async function makeTopic(properties = {}) {
  made += 1;
  const name = `node/topic-${process.pid}-${made}`;
  await administration().createTopic(name, { enablePartitioning, ...properties });
  return name;
}

export async function makeSubscription(topic, properties = {}) {
  made += 1;
  const name = `subscription-${made}`;
  await administration().createSubscription(topic, name, properties);
  return name;
}

// Retries are off, so that what the server answers is what the test sees.
export function connect(t, options = {}) {
  const client = new ServiceBusClient(options.connectionString ?? connectionString, {
    retryOptions: { maxRetries: 0, timeoutInMs: 20_000 },
    ...options,
  });
  t.after(() => client.close());
  return client;
}

export async function receiveOne(receiver, maxWaitTimeInMs = 10_000) {
  const messages = await receiver.receiveMessages(1, { maxWaitTimeInMs });
  assert.equal(messages.length, 1, `a message within ${maxWaitTimeInMs} ms`);
  return messages[0];
}

export async function receiveNone(receiver, maxWaitTimeInMs = 1_000) {
  const messages = await receiver.receiveMessages(1, { maxWaitTimeInMs });
  assert.deepEqual(messages.map((message) => message.body), []);
}

// Receives until `count` are here or one call brings none.
export async function receiveAll(receiver, count) {
  const messages = [];
  while (messages.length < count) {
    const more = await receiver.receiveMessages(count - messages.length, { maxWaitTimeInMs: 5_000 });
    if (more.length === 0) break;
    messages.push(...more);
  }
  return messages;
}

export const bodies = (messages) => messages.map((message) => message.body);

export async function untilPast(instant, marginMs = 200) {
  const left = instant.getTime() + marginMs - Date.now();
  if (left > 0) await new Promise((resolve) => setTimeout(resolve, left));
}

export async function until(what, ask, withinMs = 15_000) {
  const deadline = Date.now() + withinMs;
  for (;;) {
    const answer = await ask();
    if (answer) return answer;
    assert.ok(Date.now() < deadline, `not within ${withinMs} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

// For assert.rejects: the SDK's own error with this code.
export function withCode(code) {
  return (error) => {
    assert.ok(isServiceBusError(error), `${error}`);
    assert.equal(error.code, code, error.message);
    return true;
  };
}
