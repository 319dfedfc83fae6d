import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import java.time.Duration;

/** Sends a message to the queue `orders`, receives it and completes it. */
public final class SendReceive {
    private static final String LOCAL =
            "Endpoint=sb://localhost:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
                    + "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true";

    public static void main(String[] arguments) {
        String connection = System.getenv().getOrDefault("POSTBUS_CONNECTION_STRING", LOCAL);
        ServiceBusClientBuilder bus = new ServiceBusClientBuilder().connectionString(connection);
        try (ServiceBusSenderClient sender = bus.sender().queueName("orders").buildClient();
                ServiceBusReceiverClient receiver =
                        bus.receiver().queueName("orders").disableAutoComplete().buildClient()) {
            sender.sendMessage(new ServiceBusMessage("two cups of tea"));
            receiver.receiveMessages(1, Duration.ofSeconds(10))
                    .forEach(message -> {
                        System.out.println("received: " + message.getBody());
                        receiver.complete(message);
                    });
        }
        System.exit(0); // the SDK's threads would keep the program alive for a while
    }
}
