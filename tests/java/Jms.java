package postbus;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import javax.jms.BytesMessage;
import javax.jms.Connection;
import javax.jms.DeliveryMode;
import javax.jms.Destination;
import javax.jms.JMSException;
import javax.jms.MapMessage;
import javax.jms.Message;
import javax.jms.MessageConsumer;
import javax.jms.MessageProducer;
import javax.jms.ObjectMessage;
import javax.jms.Queue;
import javax.jms.QueueBrowser;
import javax.jms.Session;
import javax.jms.StreamMessage;
import javax.jms.TextMessage;
import org.apache.qpid.jms.JmsConnectionFactory;

/**
 * Plays scenes with Qpid JMS. Arguments: a port, then `scene=entity,entity` for each scene. Prints
 * one line for each, `scene: ok` or `scene: what went wrong`.
 */
public final class Jms {
    private static final long WAIT_MS = 10_000;
    private static final int MANY = 600;

    private interface Scene {
        void play(String... entities) throws Exception;
    }

    private interface Attempt {
        void make() throws Exception;
    }

    private final String port;
    private final List<Connection> opened = new ArrayList<>();

    private Jms(String port) {
        this.port = port;
    }

    public static void main(String[] arguments) {
        Jms all = new Jms(arguments[0]);
        Map<String, Scene> scenes = new LinkedHashMap<>();
        scenes.put("browse", all::browse);
        scenes.put("browse-many", all::browseMany);
        scenes.put("browse-locked", all::browseLocked);
        scenes.put("browse-in-a-transaction", all::browseInTransaction);
        scenes.put("browse-dead-letters", all::browseDeadLetters);
        scenes.put("browse-subscription", all::browseSubscription);
        scenes.put("browse-sessions", all::browse);
        scenes.put("selectors", all::selectors);
        scenes.put("no-local", all::noLocal);
        scenes.put("temporary", all::temporary);
        scenes.put("topics", all::topics);
        scenes.put("kinds", all::kinds);
        scenes.put("fields", all::fields);
        scenes.put("no-destination", all::noDestination);
        scenes.put("transaction", all::transaction);
        scenes.put("acknowledge", all::acknowledge);
        scenes.put("delay", all::delay);
        scenes.put("expiry", all::expiry);
        scenes.put("request-reply", all::requestReply);
        scenes.put("unknown", all::unknown);
        for (int n = 1; n < arguments.length; n++) {
            String[] parts = arguments[n].split("=", 2);
            String result = "ok";
            try {
                scenes.get(parts[0]).play(parts[1].split(","));
            } catch (Throwable problem) {
                result = problem.getStackTrace()[0] + " " + String.valueOf(problem).replace('\n', ' ');
            }
            System.out.println(parts[0] + ": " + result);
            all.close();
        }
        System.exit(0);
    }

    // -- browsing -----------------------------------------------------------------------------

    private void browse(String... entities) throws Exception {
        Session session = session(Session.AUTO_ACKNOWLEDGE);
        Queue queue = session.createQueue(entities[0]);
        same(Collections.emptyList(), seen(session, queue));
        MessageProducer producer = session.createProducer(queue);
        for (String text : Arrays.asList("a", "b", "c")) {
            Message message = session.createTextMessage(text);
            message.setStringProperty("JMSXGroupID", "s");
            producer.send(message);
        }
        for (int n = 0; n < 3; n++) {
            same(Arrays.asList("a", "b", "c"), seen(session, queue));
        }
        if (entities.length > 1) {
            // Its messages are received in sessions, which JMS has no word for.
            refused("session", () -> session.createConsumer(queue));
            return;
        }
        MessageConsumer consumer = session.createConsumer(queue);
        for (String text : Arrays.asList("a", "b", "c")) {
            Message message = received(consumer, text);
            same(1, message.getIntProperty("JMSXDeliveryCount"));
            same(false, message.getJMSRedelivered());
        }
        same(Collections.emptyList(), seen(session, queue));
    }

    private void browseMany(String... entities) throws Exception {
        Session session = session(Session.AUTO_ACKNOWLEDGE);
        Queue queue = session.createQueue(entities[0]);
        MessageProducer producer = session.createProducer(queue);
        List<String> texts = new ArrayList<>();
        for (int n = 0; n < MANY; n++) {
            texts.add("m" + n);
            producer.send(session.createTextMessage("m" + n), DeliveryMode.NON_PERSISTENT, 4, 0);
        }
        same(texts, seen(session, queue));
        Session other = session("jms.prefetchPolicy.queueBrowserPrefetch=7", Session.AUTO_ACKNOWLEDGE);
        same(texts, seen(other, other.createQueue(entities[0])));
        Session pulling = session("jms.prefetchPolicy.queueBrowserPrefetch=0", Session.AUTO_ACKNOWLEDGE);
        same(texts, seen(pulling, pulling.createQueue(entities[0])));
    }

    private void browseLocked(String... entities) throws Exception {
        Session session = session(Session.CLIENT_ACKNOWLEDGE);
        Queue queue = session.createQueue(entities[0]);
        send(session, queue, "a", "b");
        MessageConsumer consumer = session.createConsumer(queue);
        Message held = received(consumer, "a");
        same(Arrays.asList("a", "b"), seen(session, queue));
        received(consumer, "b");
        held.acknowledge();
        same(Collections.emptyList(), seen(session, queue));
    }

    private void browseInTransaction(String... entities) throws Exception {
        Session session = session(Session.SESSION_TRANSACTED);
        Queue queue = session.createQueue(entities[0]);
        send(session, queue, "a", "b");
        same(Collections.emptyList(), seen(session, queue));
        session.commit();
        same(Arrays.asList("a", "b"), seen(session, queue));
        session.rollback();
        same(Arrays.asList("a", "b"), seen(session, queue));
    }

    private void browseDeadLetters(String... entities) throws Exception {
        Session session = session(Session.AUTO_ACKNOWLEDGE);
        Queue letters = session.createQueue(entities[0] + "/$DeadLetterQueue");
        same(Arrays.asList("dead"), seen(session, letters));
        received(session.createConsumer(letters), "dead");
        same(Collections.emptyList(), seen(session, letters));
    }

    private void browseSubscription(String... entities) throws Exception {
        Session session = session(Session.AUTO_ACKNOWLEDGE);
        Queue subscription = session.createQueue(entities[0] + "/Subscriptions/" + entities[1]);
        send(session, session.createTopic(entities[0]), "a", "b");
        same(Arrays.asList("a", "b"), seen(session, subscription));
        MessageConsumer consumer = session.createConsumer(subscription);
        received(consumer, "a");
        received(consumer, "b");
    }

    // -- what is refused ----------------------------------------------------------------------

    private void selectors(String... entities) throws Exception {
        Session session = session(Session.AUTO_ACKNOWLEDGE);
        Queue queue = session.createQueue(entities[0]);
        send(session, queue, "a");
        refused("Selectors are not supported", () -> session.createConsumer(queue, "colour = 'red'"));
        refused("Selectors are not supported",
            () -> session.createBrowser(queue, "colour = 'red'").getEnumeration());
        received(session.createConsumer(queue), "a");
    }

    private void noLocal(String... entities) throws Exception {
        Session session = session(Session.AUTO_ACKNOWLEDGE);
        Destination subscription = session.createTopic(entities[0] + "/Subscriptions/" + entities[1]);
        refused("leave out their own messages", () -> session.createConsumer(subscription, null, true));
    }

    private void temporary(String... entities) throws Exception {
        Session session = session(Session.AUTO_ACKNOWLEDGE);
        refused("Dynamic nodes are not supported", session::createTemporaryQueue);
        refused("Dynamic nodes are not supported", session::createTemporaryTopic);
        send(session, session.createQueue(entities[0]), "the session goes on");
    }

    private void topics(String... entities) throws Exception {
        Connection connection = connect("", "a-client");
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        javax.jms.Topic topic = session.createTopic(entities[0]);
        javax.jms.Topic subscription = session.createTopic(entities[0] + "/Subscriptions/" + entities[1]);
        refused("name a subscription", () -> session.createConsumer(topic));
        refused("name a subscription", () -> session.createDurableSubscriber(topic, "d"));
        refused("Durable subscriptions are not made",
            () -> session.createDurableSubscriber(subscription, "d"));
        refused("name a subscription", () -> session.createSharedConsumer(topic, "s"));
        refused("shared subscriptions", () -> session.createSharedConsumer(subscription, "s"));
        refused("Durable subscriptions are not made",
            () -> session.createSharedDurableConsumer(subscription, "s"));
        send(session, topic, "a");
        received(session.createConsumer(subscription), "a");
    }

    private void delay(String... entities) throws Exception {
        Session session = session(Session.AUTO_ACKNOWLEDGE);
        MessageProducer producer = session.createProducer(session.createQueue(entities[0]));
        producer.setDeliveryDelay(60_000);
        refused("delayed message delivery", () -> producer.send(session.createTextMessage("a")));
    }

    private void unknown(String... entities) throws Exception {
        Session session = session(Session.AUTO_ACKNOWLEDGE);
        Queue queue = session.createQueue(entities[0]);
        refused("could not be found", () -> session.createConsumer(queue));
        refused("could not be found", () -> session.createProducer(queue));
        refused("could not be found", () -> session.createBrowser(queue).getEnumeration());
        JmsConnectionFactory wrong = new JmsConnectionFactory(
            "RootManageSharedAccessKey", "wrong", "amqp://localhost:" + port);
        refused("SASL", () -> wrong.createConnection().start());
    }

    // -- what works ---------------------------------------------------------------------------

    private void kinds(String... entities) throws Exception {
        Session session = session(Session.AUTO_ACKNOWLEDGE);
        Queue queue = session.createQueue(entities[0]);
        MessageProducer producer = session.createProducer(queue);
        MessageConsumer consumer = session.createConsumer(queue);
        producer.send(session.createTextMessage("text"));
        same("text", ((TextMessage) next(consumer)).getText());
        BytesMessage bytes = session.createBytesMessage();
        bytes.writeInt(42);
        producer.send(bytes);
        same(42, ((BytesMessage) next(consumer)).readInt());
        MapMessage map = session.createMapMessage();
        map.setLong("n", 7L);
        producer.send(map);
        same(7L, ((MapMessage) next(consumer)).getLong("n"));
        StreamMessage stream = session.createStreamMessage();
        stream.writeString("x");
        stream.writeDouble(1.5);
        producer.send(stream);
        StreamMessage came = (StreamMessage) next(consumer);
        same("x", came.readString());
        same(1.5, came.readDouble());
        producer.send(session.createObjectMessage("serialised"));
        same("serialised", ((ObjectMessage) next(consumer)).getObject());
        producer.send(session.createMessage());
        same(false, next(consumer) instanceof TextMessage);
    }

    private void fields(String... entities) throws Exception {
        Session session = session(Session.AUTO_ACKNOWLEDGE);
        Queue queue = session.createQueue(entities[0]);
        Message message = session.createTextMessage("a");
        message.setJMSCorrelationID("c");
        message.setJMSType("t");
        message.setJMSReplyTo(session.createQueue("answers"));
        message.setStringProperty("s", "x");
        message.setIntProperty("i", 1);
        message.setLongProperty("l", 1L << 40);
        message.setBooleanProperty("b", true);
        message.setDoubleProperty("d", 0.5);
        message.setStringProperty("JMSXGroupID", "group");
        message.setIntProperty("JMSXGroupSeq", 3);
        MessageProducer producer = session.createProducer(queue);
        producer.send(message, DeliveryMode.PERSISTENT, 7, 60_000);
        MessageConsumer consumer = session.createConsumer(queue);
        Message came = next(consumer);
        same(message.getJMSMessageID(), came.getJMSMessageID());
        same("c", came.getJMSCorrelationID());
        same("t", came.getJMSType());
        same(7, came.getJMSPriority());
        same(DeliveryMode.PERSISTENT, came.getJMSDeliveryMode());
        same("answers", ((Queue) came.getJMSReplyTo()).getQueueName());
        same(entities[0], ((Queue) came.getJMSDestination()).getQueueName());
        same(true, came.getJMSExpiration() > System.currentTimeMillis());
        same("x", came.getStringProperty("s"));
        same(1, came.getIntProperty("i"));
        same(1L << 40, came.getLongProperty("l"));
        same(true, came.getBooleanProperty("b"));
        same(0.5, came.getDoubleProperty("d"));
        same("group", came.getStringProperty("JMSXGroupID"));
        same(3, came.getIntProperty("JMSXGroupSeq"));
        producer.send(session.createTextMessage("b"), DeliveryMode.NON_PERSISTENT, 4, 0);
        Message second = next(consumer);
        same(DeliveryMode.NON_PERSISTENT, second.getJMSDeliveryMode());
        same(4, second.getJMSPriority());
        same(0L, second.getJMSExpiration());
    }

    private void noDestination(String... entities) throws Exception {
        Session session = session(Session.AUTO_ACKNOWLEDGE);
        MessageProducer producer = session.createProducer(null);
        for (String entity : entities) {
            producer.send(session.createQueue(entity), session.createTextMessage(entity));
        }
        for (String entity : entities) {
            received(session.createConsumer(session.createQueue(entity)), entity);
        }
    }

    private void transaction(String... entities) throws Exception {
        Session session = session(Session.SESSION_TRANSACTED);
        Queue queue = session.createQueue(entities[0]);
        send(session, queue, "never");
        session.rollback();
        send(session, queue, "a");
        session.commit();
        MessageConsumer consumer = session.createConsumer(queue);
        received(consumer, "a");
        session.rollback();
        received(consumer, "a");
        send(session, queue, "b");
        session.commit();
        received(consumer, "b");
        session.commit();
        same(null, consumer.receiveNoWait());
        same(Collections.emptyList(), seen(session, queue));
    }

    private void acknowledge(String... entities) throws Exception {
        Session session = session(Session.CLIENT_ACKNOWLEDGE);
        Queue queue = session.createQueue(entities[0]);
        send(session, queue, "a");
        MessageConsumer consumer = session.createConsumer(queue);
        received(consumer, "a");
        session.recover();
        Message again = received(consumer, "a");
        same(true, again.getJMSRedelivered());
        again.acknowledge();
        same(null, consumer.receiveNoWait());
        session.close();
        Session automatic = session(Session.AUTO_ACKNOWLEDGE);
        send(automatic, queue, "b");
        automatic.createConsumer(queue).setMessageListener(message -> { });
        while (!seen(automatic, queue).isEmpty()) {
            Thread.sleep(50);
        }
    }

    private void expiry(String... entities) throws Exception {
        Session session = session(Session.AUTO_ACKNOWLEDGE);
        Queue queue = session.createQueue(entities[0]);
        MessageProducer producer = session.createProducer(queue);
        producer.send(session.createTextMessage("a"), DeliveryMode.PERSISTENT, 4, 1_000);
        Message typed = session.createTextMessage("b");
        typed.setLongProperty("JMS_AMQP_TTL", 1_000);
        producer.send(typed);
        same(2, seen(session, queue).size());
        while (!seen(session, queue).isEmpty()) {
            Thread.sleep(100);
        }
        same(null, session.createConsumer(queue).receiveNoWait());
    }

    private void requestReply(String... entities) throws Exception {
        Session session = session(Session.AUTO_ACKNOWLEDGE);
        Queue asked = session.createQueue(entities[0]);
        Queue answers = session.createQueue(entities[1]);
        Message question = session.createTextMessage("question");
        question.setJMSReplyTo(answers);
        session.createProducer(asked).send(question);
        Message came = received(session.createConsumer(asked), "question");
        Message answer = session.createTextMessage("answer");
        answer.setJMSCorrelationID(came.getJMSMessageID());
        session.createProducer(null).send(came.getJMSReplyTo(), answer);
        Message told = received(session.createConsumer(answers), "answer");
        same(question.getJMSMessageID(), told.getJMSCorrelationID());
    }

    // -- the means ----------------------------------------------------------------------------

    private Connection connect(String options, String clientId) throws JMSException {
        Connection connection = new JmsConnectionFactory(
            "RootManageSharedAccessKey", "SAS_KEY_VALUE", "amqp://localhost:" + port + "?" + options)
            .createConnection();
        opened.add(connection);
        if (clientId != null) {
            connection.setClientID(clientId);
        }
        connection.start();
        return connection;
    }

    private Session session(int mode) throws JMSException {
        return session("", mode);
    }

    private Session session(String options, int mode) throws JMSException {
        return connect(options, null).createSession(mode);
    }

    private static void send(Session session, Destination to, String... texts) throws JMSException {
        MessageProducer producer = session.createProducer(to);
        for (String text : texts) {
            producer.send(session.createTextMessage(text));
        }
        producer.close();
    }

    private static List<String> seen(Session session, Queue queue) throws JMSException {
        List<String> texts = new ArrayList<>();
        QueueBrowser browser = session.createBrowser(queue);
        for (Object message : Collections.list(browser.getEnumeration())) {
            texts.add(((TextMessage) message).getText());
        }
        browser.close();
        return texts;
    }

    private static Message next(MessageConsumer consumer) throws JMSException {
        Message message = consumer.receive(WAIT_MS);
        if (message == null) {
            throw new AssertionError("no message came");
        }
        return message;
    }

    private static Message received(MessageConsumer consumer, String text) throws JMSException {
        Message message = next(consumer);
        same(text, ((TextMessage) message).getText());
        return message;
    }

    private static void refused(String text, Attempt attempt) throws Exception {
        try {
            attempt.make();
        } catch (JMSException | javax.jms.JMSRuntimeException refusal) {
            if (!refusal.getMessage().contains(text)) {
                throw new AssertionError("refused with " + refusal.getMessage() + ", not " + text);
            }
            return;
        }
        throw new AssertionError("not refused: " + text);
    }

    private static void same(Object expected, Object actual) {
        if (expected == null ? actual != null : !expected.equals(actual)) {
            throw new AssertionError("expected " + expected + ", got " + actual);
        }
    }

    private void close() {
        for (Connection connection : opened) {
            try {
                connection.close();
            } catch (JMSException ignored) {
                // The scene has said what was wrong.
            }
        }
        opened.clear();
    }
}
