// Sends numbered messages and waits until all are accepted: the usual first rhea program.

import { createRequire } from "node:module";

const require = createRequire(new URL("../../js/package.json", import.meta.url));
const container = require("rhea");

const [port, username, password, address, total] = process.argv.slice(2);
const count = Number(total);
let sent = 0;
let confirmed = 0;

container.on("sendable", ({ sender }) => {
  while (sender.sendable() && sent < count) {
    sent += 1;
    sender.send({ message_id: sent, body: { sequence: sent } });
  }
});
container.on("accepted", ({ connection }) => {
  confirmed += 1;
  if (confirmed === count) {
    console.log(`${confirmed} accepted`);
    connection.close();
  }
});
for (const trouble of ["rejected", "released", "modified"]) {
  container.on(trouble, ({ delivery, connection }) => {
    console.log(trouble, delivery.remote_state?.error?.condition);
    connection.close();
  });
}
for (const trouble of ["connection_error", "sender_error", "disconnected"]) {
  container.on(trouble, ({ connection, sender, error }) => {
    console.log(trouble, sender?.error ?? connection?.error ?? error);
    connection.close();
  });
}

container.connect({ port, host: "localhost", username, password, reconnect: false }).open_sender(address);
