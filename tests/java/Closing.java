package postbus;

import com.azure.core.amqp.AmqpRetryOptions;
import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusException;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import java.time.Duration;

/**
 * Takes locks, closes in good order, and sees with another client that they are still held.
 * Arguments: a connection string and `close=queue`. Prints `close: ok` or what went wrong.
 */
public final class Closing {
    private static final Duration WAIT = Duration.ofSeconds(10);

    private Closing() {
    }

    public static void main(String[] arguments) {
        String result = "ok";
        try {
            play(arguments[0], arguments[1].split("=", 2)[1]);
        } catch (Throwable problem) {
            result = String.valueOf(problem).replace('\n', ' ');
        }
        System.out.println("close: " + result);
        System.exit(0);
    }

    private static void play(String connectionString, String queue) throws Exception {
        long number;
        try (ServiceBusSenderClient sender =
                 builder(connectionString).sender().queueName(queue).buildClient();
             ServiceBusReceiverClient receiver = receiver(connectionString, queue)) {
            sender.sendMessage(new ServiceBusMessage("deferred"));
            sender.sendMessage(new ServiceBusMessage("held"));
            ServiceBusReceivedMessage first = receiver.receiveMessages(1, WAIT).iterator().next();
            number = first.getSequenceNumber();
            receiver.defer(first);
            ServiceBusReceivedMessage held = receiver.receiveMessages(1, WAIT).iterator().next();
            receiver.receiveDeferredMessage(number);
            receiver.peekMessage();
            receiver.renewMessageLock(held);
        }
        Thread.sleep(1_000); // the SDK closes its connection behind the caller's back
        try (ServiceBusReceiverClient another = receiver(connectionString, queue)) {
            another.peekMessages(5).forEach(message -> {
                long expected = message.getSequenceNumber() == number ? 1 : 0;
                if (message.getDeliveryCount() != expected) {
                    throw new AssertionError("delivery count " + message.getDeliveryCount());
                }
            });
            try {
                another.receiveDeferredMessage(number);
            } catch (ServiceBusException refusal) {
                return;
            }
            throw new AssertionError("the lock is gone");
        }
    }

    private static ServiceBusClientBuilder builder(String connectionString) {
        return new ServiceBusClientBuilder().connectionString(connectionString)
            .retryOptions(new AmqpRetryOptions().setTryTimeout(WAIT).setMaxRetries(0));
    }

    private static ServiceBusReceiverClient receiver(String connectionString, String queue) {
        return builder(connectionString).receiver().queueName(queue).maxAutoLockRenewDuration(Duration.ZERO)
            .buildClient();
    }
}
