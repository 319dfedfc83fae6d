// Receives numbered messages, accepting each: the usual second rhea program.

import { createRequire } from "node:module";

const require = createRequire(new URL("../../js/package.json", import.meta.url));
const container = require("rhea");

const [port, username, password, address, total] = process.argv.slice(2);
const expected = Number(total);
let received = 0;

container.on("message", ({ message, receiver, connection }) => {
  if (received === expected) return;
  received += 1;
  console.log(message.message_id, message.body.sequence);
  if (received === expected) {
    receiver.detach();
    connection.close();
  }
});
for (const trouble of ["connection_error", "receiver_error", "disconnected"]) {
  container.on(trouble, ({ connection, receiver, error }) => {
    console.log(trouble, receiver?.error ?? connection?.error ?? error);
    connection.close();
  });
}

container.connect({ port, host: "localhost", username, password, reconnect: false }).open_receiver(address);
