package postbus;

import com.azure.core.amqp.AmqpRetryOptions;
import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.ServiceBusSessionReceiverClient;
import com.azure.messaging.servicebus.ServiceBusTransactionContext;
import com.azure.messaging.servicebus.models.AbandonOptions;
import com.azure.messaging.servicebus.models.CompleteOptions;
import com.azure.messaging.servicebus.models.DeadLetterOptions;
import com.azure.messaging.servicebus.models.SubQueue;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Plays scenes with transactions. Arguments: a connection string, then `scene=entity,entity` for
 * each scene. Prints one line for each, `scene: ok` or `scene: what went wrong`.
 */
public final class Transactions {
    private static final Duration WAIT = Duration.ofSeconds(10);

    private interface Scene {
        void play(String... entities);
    }

    private final String connectionString;
    private final List<AutoCloseable> opened = new ArrayList<>();

    private Transactions(String connectionString) {
        this.connectionString = connectionString;
    }

    public static void main(String[] arguments) {
        Transactions all = new Transactions(arguments[0]);
        Map<String, Scene> scenes = new LinkedHashMap<>();
        scenes.put("commit", all::commit);
        scenes.put("rollback", all::rollBack);
        scenes.put("outcomes", all::outcomes);
        scenes.put("schedule", all::schedule);
        scenes.put("span", all::span);
        scenes.put("cross-entity", all::crossEntity);
        scenes.put("cross-entity-subscription", all::crossEntitySubscription);
        scenes.put("second-receiver", all::secondReceiver);
        scenes.put("session", all::session);
        for (int n = 1; n < arguments.length; n++) {
            String[] parts = arguments[n].split("=", 2);
            String result = "ok";
            try {
                scenes.get(parts[0]).play(parts[1].split(","));
            } catch (Throwable problem) {
                result = String.valueOf(problem).replace('\n', ' ');
            }
            System.out.println(parts[0] + ": " + result);
            all.close();
        }
        System.exit(0);
    }

    private void commit(String... entities) {
        ServiceBusClientBuilder builder = builder();
        ServiceBusSenderClient sender = sender(builder, entities[0]);
        ServiceBusReceiverClient receiver = receiver(builder, entities[0]);
        sender.sendMessage(new ServiceBusMessage("in"));
        ServiceBusReceivedMessage received = next(receiver, "in");
        ServiceBusTransactionContext transaction = sender.createTransaction();
        sender.sendMessage(new ServiceBusMessage("out"), transaction);
        receiver.complete(received, new CompleteOptions().setTransactionContext(transaction));
        sender.commitTransaction(transaction);
        receiver.complete(next(receiver, "out"));
        nothing(receiver);
    }

    private void rollBack(String... entities) {
        ServiceBusClientBuilder builder = builder();
        ServiceBusSenderClient sender = sender(builder, entities[0]);
        ServiceBusReceiverClient receiver = receiver(builder, entities[0]);
        sender.sendMessage(new ServiceBusMessage("in"));
        ServiceBusReceivedMessage received = next(receiver, "in");
        ServiceBusTransactionContext transaction = receiver.createTransaction();
        sender.sendMessage(new ServiceBusMessage("never"), transaction);
        receiver.complete(received, new CompleteOptions().setTransactionContext(transaction));
        receiver.rollbackTransaction(transaction);
        // It is still locked; this client takes it for settled all the same.
        nothing(receiver);
    }

    private void outcomes(String... entities) {
        ServiceBusClientBuilder builder = builder();
        ServiceBusSenderClient sender = sender(builder, entities[0]);
        ServiceBusReceiverClient receiver = receiver(builder, entities[0]);
        sender.sendMessage(new ServiceBusMessage("dead"));
        sender.sendMessage(new ServiceBusMessage("again"));
        ServiceBusReceivedMessage dead = next(receiver, "dead");
        ServiceBusReceivedMessage again = next(receiver, "again");
        ServiceBusTransactionContext transaction = sender.createTransaction();
        receiver.deadLetter(
            dead,
            new DeadLetterOptions().setDeadLetterReason("why").setTransactionContext(transaction));
        receiver.abandon(again, new AbandonOptions().setTransactionContext(transaction));
        sender.commitTransaction(transaction);
        ServiceBusReceivedMessage returned = next(receiver, "again");
        check(returned.getDeliveryCount() == 1, "delivery count " + returned.getDeliveryCount());
        receiver.complete(returned);
        ServiceBusReceiverClient letters = opened(
            builder.receiver().queueName(entities[0]).subQueue(SubQueue.DEAD_LETTER_QUEUE)
                .disableAutoComplete().buildClient());
        ServiceBusReceivedMessage letter = next(letters, "dead");
        check("why".equals(letter.getDeadLetterReason()), "reason " + letter.getDeadLetterReason());
        letters.complete(letter);
    }

    private void schedule(String... entities) {
        ServiceBusClientBuilder builder = builder();
        ServiceBusSenderClient sender = sender(builder, entities[0]);
        ServiceBusReceiverClient receiver = receiver(builder, entities[0]);
        OffsetDateTime soon = OffsetDateTime.now().plusSeconds(1);
        ServiceBusTransactionContext kept = sender.createTransaction();
        ServiceBusTransactionContext dropped = sender.createTransaction();
        sender.scheduleMessage(new ServiceBusMessage("kept"), soon, kept);
        sender.scheduleMessage(new ServiceBusMessage("dropped"), soon, dropped);
        sender.rollbackTransaction(dropped);
        sender.commitTransaction(kept);
        receiver.complete(next(receiver, "kept"));
        nothing(receiver);
    }

    private void span(String... entities) {
        ServiceBusClientBuilder builder = builder();
        ServiceBusSenderClient one = sender(builder, entities[0]);
        ServiceBusSenderClient other = sender(builder, entities[1]);
        ServiceBusTransactionContext transaction = one.createTransaction();
        one.sendMessage(new ServiceBusMessage("one"), transaction);
        // The SDK does not look at what becomes of a send in a transaction: the commit tells.
        other.sendMessage(new ServiceBusMessage("other"), transaction);
        refused(
            "cannot span multiple top-level entities", () -> one.commitTransaction(transaction));
        nothing(receiver(builder, entities[0]));
    }

    private void crossEntity(String... entities) {
        ServiceBusClientBuilder builder = builder().enableCrossEntityTransactions();
        ServiceBusClientBuilder plain = builder();
        sender(plain, entities[0]).sendMessage(new ServiceBusMessage("in"));
        ServiceBusReceiverClient receiver = receiver(builder, entities[0]);
        ServiceBusReceivedMessage received = next(receiver, "in");
        ServiceBusSenderClient sender = sender(builder, entities[1]);
        ServiceBusTransactionContext dropped = sender.createTransaction();
        sender.sendMessage(new ServiceBusMessage("never"), dropped);
        sender.rollbackTransaction(dropped);
        ServiceBusTransactionContext transaction = sender.createTransaction();
        receiver.complete(received, new CompleteOptions().setTransactionContext(transaction));
        sender.sendMessage(new ServiceBusMessage("out"), transaction);
        sender.commitTransaction(transaction);
        ServiceBusReceiverClient destination = receiver(plain, entities[1]);
        destination.complete(next(destination, "out"));
        nothing(destination);
        nothing(receiver(plain, entities[0]));
    }

    private void crossEntitySubscription(String... entities) {
        ServiceBusClientBuilder builder = builder().enableCrossEntityTransactions();
        ServiceBusClientBuilder plain = builder();
        ServiceBusSenderClient topic = opened(plain.sender().topicName(entities[0]).buildClient());
        topic.sendMessage(new ServiceBusMessage("in"));
        ServiceBusReceiverClient receiver = opened(
            builder.receiver().topicName(entities[0]).subscriptionName(entities[1])
                .disableAutoComplete().buildClient());
        ServiceBusReceivedMessage received = next(receiver, "in");
        ServiceBusSenderClient sender = sender(builder, entities[2]);
        ServiceBusTransactionContext transaction = sender.createTransaction();
        receiver.complete(received, new CompleteOptions().setTransactionContext(transaction));
        sender.sendMessage(new ServiceBusMessage("out"), transaction);
        sender.commitTransaction(transaction);
        ServiceBusReceiverClient destination = receiver(plain, entities[2]);
        destination.complete(next(destination, "out"));
    }

    private void secondReceiver(String... entities) {
        ServiceBusClientBuilder builder = builder().enableCrossEntityTransactions();
        sender(builder(), entities[0]).sendMessage(new ServiceBusMessage("in"));
        ServiceBusReceiverClient one = receiver(builder, entities[0]);
        one.complete(next(one, "in"));
        ServiceBusReceiverClient other = receiver(builder, entities[1]);
        refused("cannot span multiple top-level entities", () -> next(other, "never"));
    }

    private void session(String... entities) {
        ServiceBusClientBuilder builder = builder();
        ServiceBusSenderClient sender = sender(builder, entities[0]);
        sender.sendMessage(new ServiceBusMessage("in").setSessionId("s"));
        ServiceBusSessionReceiverClient sessions = opened(
            builder.sessionReceiver().queueName(entities[0]).disableAutoComplete().buildClient());
        ServiceBusReceiverClient receiver = opened(sessions.acceptSession("s"));
        ServiceBusReceivedMessage received = next(receiver, "in");
        ServiceBusTransactionContext dropped = sender.createTransaction();
        sender.sendMessage(new ServiceBusMessage("never").setSessionId("s"), dropped);
        sender.rollbackTransaction(dropped);
        ServiceBusTransactionContext unkeyed = sender.createTransaction();
        sender.sendMessage(new ServiceBusMessage("without a session"), unkeyed);
        refused("SessionId", () -> sender.commitTransaction(unkeyed));
        ServiceBusTransactionContext transaction = sender.createTransaction();
        sender.sendMessage(new ServiceBusMessage("out").setSessionId("s"), transaction);
        receiver.complete(received, new CompleteOptions().setTransactionContext(transaction));
        sender.commitTransaction(transaction);
        receiver.complete(next(receiver, "out"));
        nothing(receiver);
    }

    private ServiceBusClientBuilder builder() {
        AmqpRetryOptions once =
            new AmqpRetryOptions().setMaxRetries(0).setTryTimeout(Duration.ofSeconds(20));
        return new ServiceBusClientBuilder().connectionString(connectionString).retryOptions(once);
    }

    private ServiceBusSenderClient sender(ServiceBusClientBuilder builder, String queue) {
        return opened(builder.sender().queueName(queue).buildClient());
    }

    private ServiceBusReceiverClient receiver(ServiceBusClientBuilder builder, String queue) {
        return opened(builder.receiver().queueName(queue).disableAutoComplete().buildClient());
    }

    private <T extends AutoCloseable> T opened(T client) {
        opened.add(client);
        return client;
    }

    private void close() {
        for (AutoCloseable each : opened) {
            try {
                each.close();
            } catch (Exception problem) {
                System.err.println("not closed: " + problem);
            }
        }
        opened.clear();
    }

    private static ServiceBusReceivedMessage next(ServiceBusReceiverClient receiver, String body) {
        Iterator<ServiceBusReceivedMessage> received = receiver.receiveMessages(1, WAIT).iterator();
        check(received.hasNext(), "nothing came, instead of " + body);
        ServiceBusReceivedMessage message = received.next();
        check(body.equals(message.getBody().toString()), message.getBody() + " came, not " + body);
        return message;
    }

    private static void nothing(ServiceBusReceiverClient receiver) {
        for (ServiceBusReceivedMessage each
            : receiver.receiveMessages(1, Duration.ofMillis(500))) {
            throw new AssertionError(each.getBody() + " came unasked");
        }
    }

    private static void refused(String text, Runnable action) {
        try {
            action.run();
        } catch (RuntimeException error) {
            Throwable cause = error;
            while (cause != null && !String.valueOf(cause).contains(text)) {
                cause = cause.getCause();
            }
            check(cause != null, "refused with " + error);
            return;
        }
        throw new AssertionError("not refused");
    }

    private static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise);
        }
    }
}
