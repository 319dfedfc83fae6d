package postbus;

import com.azure.core.amqp.AmqpRetryOptions;
import com.azure.core.amqp.models.AmqpAnnotatedMessage;
import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.models.ServiceBusReceiveMode;
import java.time.Duration;
import java.util.Iterator;

/**
 * Sends a message with something in each section that the SDK sends, and reads it back. Arguments: a
 * connection string, then `scene=queue` for each scene. Prints one line for each, `scene: ok` or
 * `scene: what went wrong`.
 */
public final class Fields {
    private static final Duration WAIT = Duration.ofSeconds(10);

    private Fields() {
    }

    public static void main(String[] arguments) {
        for (int n = 1; n < arguments.length; n++) {
            String[] parts = arguments[n].split("=", 2);
            String result = "ok";
            try {
                play(parts[0], new ServiceBusClientBuilder().connectionString(arguments[0])
                    .retryOptions(new AmqpRetryOptions().setTryTimeout(WAIT).setMaxRetries(0)), parts[1]);
            } catch (Throwable problem) {
                result = String.valueOf(problem).replace('\n', ' ');
            }
            System.out.println(parts[0] + ": " + result);
        }
        System.exit(0);
    }

    private static void play(String scene, ServiceBusClientBuilder builder, String queue) {
        try (ServiceBusSenderClient sender = builder.sender().queueName(queue).buildClient();
             ServiceBusReceiverClient receiver = builder.receiver().queueName(queue)
                 .receiveMode(scene.equals("delete")
                     ? ServiceBusReceiveMode.RECEIVE_AND_DELETE : ServiceBusReceiveMode.PEEK_LOCK)
                 .buildClient()) {
            sender.sendMessage(full());
            if (scene.equals("peek")) {
                check(receiver.peekMessage());
            }
            Iterator<ServiceBusReceivedMessage> came = receiver.receiveMessages(1, WAIT).iterator();
            if (!came.hasNext()) {
                throw new AssertionError("no message came");
            }
            ServiceBusReceivedMessage message = came.next();
            check(message);
            if (scene.equals("receive")) {
                same("b", message.getRawAmqpMessage().getDeliveryAnnotations().get("b"));
            }
            if (!scene.equals("delete")) {
                receiver.complete(message);
            }
        }
    }

    private static ServiceBusMessage full() {
        ServiceBusMessage message = new ServiceBusMessage("tea");
        message.getApplicationProperties().put("a", 1);
        // The SDK sends no message annotations and no header of the caller's.
        AmqpAnnotatedMessage raw = message.getRawAmqpMessage();
        raw.getDeliveryAnnotations().put("b", "b");
        raw.getFooter().put("d", "d");
        raw.getFooter().put("e", 2);
        return message;
    }

    private static void check(ServiceBusReceivedMessage message) {
        AmqpAnnotatedMessage raw = message.getRawAmqpMessage();
        same(1, message.getApplicationProperties().get("a"));
        same("d", raw.getFooter().get("d"));
        same(2, raw.getFooter().get("e"));
        same("tea", message.getBody().toString());
    }

    private static void same(Object expected, Object actual) {
        if (!expected.equals(actual)) {
            throw new AssertionError("expected " + expected + ", got " + actual);
        }
    }
}
