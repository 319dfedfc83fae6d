package conformance

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

func TestWhatIsSentIsReceivedAndCompleted(t *testing.T) {
	client, queue := newClient(t), newQueue(t, nil)
	sender, receiver := newSender(t, client, queue), newReceiver(t, client, queue, nil)
	send(t, sender, &azservicebus.Message{
		Body:                  []byte("tea"),
		MessageID:             pointer("order 1"),
		Subject:               pointer("drinks"),
		ContentType:           pointer("text/plain"),
		ApplicationProperties: map[string]any{"cups": int64(2), "hot": true, "price": 1.5},
	})
	message := one(t, receiver)
	equal(t, "the body", string(message.Body), "tea")
	equal(t, "the id", message.MessageID, "order 1")
	equal(t, "the subject", *message.Subject, "drinks")
	equal(t, "a number", message.ApplicationProperties["cups"], any(int64(2)))
	equal(t, "a boolean", message.ApplicationProperties["hot"], any(true))
	equal(t, "a fraction", message.ApplicationProperties["price"], any(1.5))
	check(t, receiver.CompleteMessage(within(t), message, nil))
	none(t, receiver)
}

func TestAnAbandonedMessageComesAgainAndADeferredOneByItsNumber(t *testing.T) {
	client, queue := newClient(t), newQueue(t, nil)
	sender, receiver := newSender(t, client, queue), newReceiver(t, client, queue, nil)
	send(t, sender, &azservicebus.Message{Body: []byte("again")})
	message := one(t, receiver)
	check(t, receiver.AbandonMessage(within(t), message, &azservicebus.AbandonMessageOptions{
		PropertiesToModify: map[string]any{"why": "not yet"},
	}))
	message = one(t, receiver)
	equal(t, "the delivery count", message.DeliveryCount, 2)
	equal(t, "the property", message.ApplicationProperties["why"], any("not yet"))
	check(t, receiver.RenewMessageLock(within(t), message, nil))
	check(t, receiver.DeferMessage(within(t), message, nil))
	none(t, receiver)
	numbers := []int64{*message.SequenceNumber}
	deferred := must(receiver.ReceiveDeferredMessages(within(t), numbers, nil))(t)
	equal(t, "the number of deferred messages", len(deferred), 1)
	check(t, receiver.CompleteMessage(within(t), deferred[0], nil))
}

func TestADeadLetterSaysWhy(t *testing.T) {
	client, queue := newClient(t), newQueue(t, nil)
	sender, receiver := newSender(t, client, queue), newReceiver(t, client, queue, nil)
	send(t, sender, &azservicebus.Message{Body: []byte("bad")})
	check(t, receiver.DeadLetterMessage(within(t), one(t, receiver), &azservicebus.DeadLetterOptions{
		Reason: pointer("spilt"), ErrorDescription: pointer("no tea left"),
	}))
	dead := newReceiver(t, client, queue, &azservicebus.ReceiverOptions{
		SubQueue: azservicebus.SubQueueDeadLetter,
	})
	message := one(t, dead)
	equal(t, "the reason", *message.DeadLetterReason, "spilt")
	equal(t, "the description", *message.DeadLetterErrorDescription, "no tea left")
	check(t, dead.CompleteMessage(within(t), message, nil))
}

func TestPeekLooksAtAllAndTakesNothing(t *testing.T) {
	client, queue := newClient(t), newQueue(t, nil)
	sender, receiver := newSender(t, client, queue), newReceiver(t, client, queue, nil)
	batch := must(sender.NewMessageBatch(within(t), nil))(t)
	for number := range 5 {
		body := []byte(fmt.Sprint(number))
		check(t, batch.AddMessage(&azservicebus.Message{Body: body}, nil))
	}
	check(t, sender.SendMessageBatch(within(t), batch, nil))
	peeked := must(receiver.PeekMessages(within(t), 10, nil))(t)
	equal(t, "the number of messages", len(peeked), 5)
	for number, message := range peeked {
		equal(t, "the body", string(message.Body), fmt.Sprint(number))
	}
	equal(t, "the first", string(one(t, receiver).Body), "0")
}

func TestAScheduledMessageComesWhenItIsDueOrIsCancelled(t *testing.T) {
	client, queue := newClient(t), newQueue(t, nil)
	sender, receiver := newSender(t, client, queue), newReceiver(t, client, queue, nil)
	schedule := func(body string, at time.Time) []int64 {
		messages := []*azservicebus.Message{{Body: []byte(body)}}
		return must(sender.ScheduleMessages(within(t), messages, at, nil))(t)
	}
	cancelled := schedule("cancelled", time.Now().Add(2*time.Second))
	check(t, sender.CancelScheduledMessages(within(t), cancelled, nil))
	schedule("due", time.Now().Add(2*time.Second))
	peeked := must(receiver.PeekMessages(within(t), 2, nil))(t)
	equal(t, "the number of scheduled messages", len(peeked), 1)
	equal(t, "its state", peeked[0].State, azservicebus.MessageStateScheduled)
	message := one(t, receiver)
	equal(t, "the body", string(message.Body), "due")
	check(t, receiver.CompleteMessage(within(t), message, nil))
	none(t, receiver)
}

func TestReceiveAndDeleteLeavesNothing(t *testing.T) {
	client, queue := newClient(t), newQueue(t, nil)
	sender := newSender(t, client, queue)
	receiver := newReceiver(t, client, queue, &azservicebus.ReceiverOptions{
		ReceiveMode: azservicebus.ReceiveModeReceiveAndDelete,
	})
	send(t, sender, &azservicebus.Message{Body: []byte("gone")})
	equal(t, "the body", string(one(t, receiver).Body), "gone")
	peeked := must(receiver.PeekMessages(within(t), 1, nil))(t)
	equal(t, "the number of messages left", len(peeked), 0)
}

func TestASubscriptionGetsWhatItsRuleTakes(t *testing.T) {
	client, administration := newClient(t), newAdmin(t)
	topic := newName("go")
	must(administration.CreateTopic(within(t), topic, nil))(t)
	must(administration.CreateSubscription(within(t), topic, "red", &admin.CreateSubscriptionOptions{
		Properties: &admin.SubscriptionProperties{
			DefaultRule: &admin.RuleProperties{
				Name: "colour", Filter: &admin.SQLFilter{Expression: "colour = 'red'"},
			},
		},
	}))(t)
	sender := newSender(t, client, topic)
	for _, colour := range []string{"blue", "red"} {
		send(t, sender, &azservicebus.Message{
			Body: []byte(colour), ApplicationProperties: map[string]any{"colour": colour},
		})
	}
	receiver := must(client.NewReceiverForSubscription(topic, "red", nil))(t)
	message := one(t, receiver)
	equal(t, "the body", string(message.Body), "red")
	check(t, receiver.CompleteMessage(within(t), message, nil))
	none(t, receiver)
	check(t, receiver.Close(within(t)))
}

func TestALargeMessageIsRefusedByTheBatchAndTheBroker(t *testing.T) {
	client, queue := newClient(t), newQueue(t, nil)
	sender := newSender(t, client, queue)
	large := &azservicebus.Message{Body: []byte(strings.Repeat("x", 300*1024))}
	batch := must(sender.NewMessageBatch(within(t), nil))(t)
	equal(t, "the refusal of the batch", batch.AddMessage(large, nil), azservicebus.ErrMessageTooLarge)
	equal(t, "the refusal of the broker", sender.SendMessage(within(t), large, nil),
		azservicebus.ErrMessageTooLarge)
}

func TestALargeMessageGoesThroughAQueueThatTakesIt(t *testing.T) {
	client := newClient(t)
	queue := newQueue(t, &admin.QueueProperties{MaxMessageSizeInKilobytes: pointer(int64(102_400))})
	found := must(newAdmin(t).GetQueue(within(t), queue, nil))(t)
	equal(t, "the size", *found.MaxMessageSizeInKilobytes, int64(102_400))
	sender, receiver := newSender(t, client, queue), newReceiver(t, client, queue, nil)
	large := strings.Repeat("large ", 1<<20)
	send(t, sender, &azservicebus.Message{Body: []byte(large)})
	message := one(t, receiver)
	equal(t, "the body is the same", string(message.Body) == large, true)
	check(t, receiver.CompleteMessage(within(t), message, nil))
	// A batch has a megabyte all the same.
	batch := must(sender.NewMessageBatch(within(t), nil))(t)
	megabyte := &azservicebus.Message{Body: []byte(strings.Repeat("x", 1<<20))}
	equal(t, "the refusal", batch.AddMessage(megabyte, nil), azservicebus.ErrMessageTooLarge)
	megabyte.Body = megabyte.Body[:1<<20-1024]
	check(t, batch.AddMessage(megabyte, nil))
	check(t, sender.SendMessageBatch(within(t), batch, nil))
}
