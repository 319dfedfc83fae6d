// Messages in AMQP's own words: what a sender says in any section comes back as it was said.

import assert from "node:assert/strict";
import { test } from "node:test";

import { connect, makeQueue, receiveOne } from "./support.mjs";

const full = {
  body: "tea",
  bodyType: "data",
  header: { durable: false, firstAcquirer: false, priority: 4 },
  footer: { propFooter: "foot", number: 2 },
  messageAnnotations: { propMsgAnnotate: "annotation" },
  deliveryAnnotations: { propDeliveryAnnotate: "delivery" },
  applicationProperties: { colour: "red" },
};

function check({ _rawAmqpMessage: raw }, header) {
  for (const [name, value] of Object.entries(header)) assert.equal(raw.header[name], value, name);
  assert.deepEqual({ ...raw.footer }, full.footer);
  assert.equal(raw.messageAnnotations.propMsgAnnotate, "annotation");
  assert.equal(raw.applicationProperties.colour, "red");
}

for (const [what, header] of [
  ["defaults that are spelled out", { durable: false, firstAcquirer: false, priority: 4 }],
  ["what is no default", { durable: true, firstAcquirer: true, priority: 9 }],
  ["what is not said", { durable: undefined, firstAcquirer: undefined, priority: undefined }],
]) {
  test(`a header comes back as it was sent: ${what}`, async (t) => {
    const queue = await makeQueue();
    const client = connect(t);
    await client.createSender(queue).sendMessages({ ...full, header });
    const receiver = client.createReceiver(queue);
    check((await receiver.peekMessages(1))[0], header);
    const message = await receiveOne(receiver);
    check(message, header);
    assert.equal(message._rawAmqpMessage.deliveryAnnotations.propDeliveryAnnotate, "delivery");
    await receiver.completeMessage(message);
  });
}
