package postbus;

import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusException;
import com.azure.messaging.servicebus.ServiceBusFailureReason;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusRuleManagerClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.administration.models.CorrelationRuleFilter;
import com.azure.messaging.servicebus.administration.models.CreateRuleOptions;
import com.azure.messaging.servicebus.administration.models.FalseRuleFilter;
import com.azure.messaging.servicebus.administration.models.RuleProperties;
import com.azure.messaging.servicebus.administration.models.SqlRuleAction;
import com.azure.messaging.servicebus.administration.models.SqlRuleFilter;
import com.azure.messaging.servicebus.administration.models.TrueRuleFilter;
import com.azure.messaging.servicebus.models.ServiceBusMessageState;
import com.azure.messaging.servicebus.models.ServiceBusReceiveMode;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * Plays scenes about what a client sees of a message, a rule, an error. Arguments: a connection
 * string, then `scene=entity,entity` for each scene. Prints one line for each, `scene: ok` or
 * `scene: what went wrong`. The SDK's own retries are on, as users have them.
 */
public final class Fidelity {
    private interface Scene {
        void play(ServiceBusClientBuilder builder, String... entities) throws Exception;
    }

    private static final Map<String, Scene> SCENES =
        Map.of(
            "missing", Fidelity::missing,
            "rules", Fidelity::rules,
            "scheduled", Fidelity::scheduled);

    public static void main(String[] arguments) {
        for (int n = 1; n < arguments.length; n++) {
            String[] parts = arguments[n].split("=", 2);
            String result = "ok";
            try {
                ServiceBusClientBuilder builder =
                    new ServiceBusClientBuilder().connectionString(arguments[0]);
                SCENES.get(parts[0]).play(builder, parts[1].split(","));
            } catch (Throwable problem) {
                result = String.valueOf(problem).replace('\n', ' ');
            }
            System.out.println(parts[0] + ": " + result);
        }
        System.exit(0);
    }

    /** The text decides whether the SDK tries again; it names what was asked for. */
    private static void missing(ServiceBusClientBuilder builder, String... entities) {
        try (ServiceBusSenderClient sender = builder.sender().queueName(entities[0]).buildClient()) {
            sender.sendMessage(new ServiceBusMessage("x"));
        } catch (ServiceBusException error) {
            check(error.getReason() == ServiceBusFailureReason.MESSAGING_ENTITY_NOT_FOUND, error);
            check(!error.isTransient(), error);
            check(error.getMessage().contains("'sb://localhost/" + entities[0] + "' could"), error);
            return;
        }
        throw new AssertionError("a message was sent to nowhere");
    }

    private static void rules(ServiceBusClientBuilder builder, String... entities) {
        try (ServiceBusRuleManagerClient manager =
            builder.ruleManager().topicName(entities[0]).subscriptionName(entities[1]).buildClient()) {
            manager.createRule("false", new CreateRuleOptions(new FalseRuleFilter()));
            CreateRuleOptions sql = new CreateRuleOptions(new SqlRuleFilter("a = 1"));
            manager.createRule("sql", sql.setAction(new SqlRuleAction("SET b = 2")));
            CorrelationRuleFilter correlation = new CorrelationRuleFilter().setLabel("l");
            correlation.getProperties().put("k", "v");
            manager.createRule("correlation", new CreateRuleOptions(correlation));
            List<String> found = new ArrayList<>();
            for (RuleProperties rule : manager.listRules()) {
                String kind = rule.getFilter().getClass().getSimpleName();
                found.add(rule.getName() + " " + kind + " " + (rule.getAction() instanceof SqlRuleAction));
                check(!rule.getName().equals("$Default") || rule.getFilter() instanceof TrueRuleFilter, kind);
            }
            found.sort(null);
            List<String> expected =
                List.of(
                    "$Default TrueRuleFilter false",
                    "correlation CorrelationRuleFilter false",
                    "false FalseRuleFilter false",
                    "sql SqlRuleFilter true");
            check(found.equals(expected), found);
        }
    }

    private static void scheduled(ServiceBusClientBuilder builder, String... entities) {
        try (ServiceBusSenderClient sender = builder.sender().queueName(entities[0]).buildClient();
            ServiceBusReceiverClient receiver =
                builder.receiver().queueName(entities[0])
                    .receiveMode(ServiceBusReceiveMode.RECEIVE_AND_DELETE).buildClient()) {
            sender.sendMessage(new ServiceBusMessage("now"));
            sender.scheduleMessage(new ServiceBusMessage("later"), OffsetDateTime.now().plusSeconds(2));
            for (ServiceBusMessageState expected
                : List.of(ServiceBusMessageState.ACTIVE, ServiceBusMessageState.SCHEDULED)) {
                ServiceBusReceivedMessage message =
                    receiver.receiveMessages(1, Duration.ofSeconds(20)).iterator().next();
                check(message.getState() == expected, message.getBody() + " is " + message.getState());
            }
        }
    }

    private static void check(boolean holds, Object otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise);
        }
    }
}
