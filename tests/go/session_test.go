package conformance

import (
	"context"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

func newSessionQueue(t *testing.T) string {
	t.Helper()
	return newQueue(t, &admin.QueueProperties{RequiresSession: pointer(true)})
}

func acceptSession(t *testing.T, client *azservicebus.Client, queue, id string) *azservicebus.SessionReceiver {
	t.Helper()
	receiver := must(client.AcceptSessionForQueue(within(t), queue, id, nil))(t)
	t.Cleanup(func() { _ = receiver.Close(context.Background()) })
	return receiver
}

// The SDK's own TestSessionReceiver_Detach: the first update changes the queue, the second nothing.
// A receive on a link that was detached gives nothing and no error, so the second must detach none.
func TestASessionReceiverOutlivesUpdatesOfItsQueue(t *testing.T) {
	client := newClient(t)
	queue := newQueue(t, &admin.QueueProperties{
		RequiresSession: pointer(true), AutoDeleteOnIdle: pointer("PT5M"),
	})
	receiver := acceptSession(t, client, queue, "s")
	sender := newSender(t, client, queue)
	send(t, sender, &azservicebus.Message{Body: []byte("hello"), SessionID: pointer("s")})
	update := func() {
		properties := admin.QueueProperties{RequiresSession: pointer(true)}
		must(newAdmin(t).UpdateQueue(within(t), queue, properties, nil))(t)
	}
	must(receiver.GetSessionState(within(t), nil))(t)
	update()
	must(receiver.GetSessionState(within(t), nil))(t)
	update()
	message := one(t, receiver)
	equal(t, "the body", string(message.Body), "hello")
	check(t, receiver.CompleteMessage(within(t), message, nil))
	check(t, receiver.Close(within(t)))
}

func TestASessionReceiverGoesOnAfterAChangeOfItsQueue(t *testing.T) {
	client, queue := newClient(t), newSessionQueue(t)
	receiver := acceptSession(t, client, queue, "s")
	sender := newSender(t, client, queue)
	send(t, sender, &azservicebus.Message{Body: []byte("hello"), SessionID: pointer("s")})
	properties := admin.QueueProperties{RequiresSession: pointer(true), MaxDeliveryCount: pointer(int32(7))}
	must(newAdmin(t).UpdateQueue(within(t), queue, properties, nil))(t)
	// The first receive finds the link detached, gives nothing, and has it attached again.
	messages := must(receiver.ReceiveMessages(within(t), 1, nil))(t)
	if len(messages) == 0 {
		messages = append(messages, one(t, receiver))
	}
	equal(t, "the body", string(messages[0].Body), "hello")
	check(t, receiver.CompleteMessage(within(t), messages[0], nil))
}

func TestSessionsAreTakenInTurnAndKeepTheirState(t *testing.T) {
	client, queue := newClient(t), newSessionQueue(t)
	sender := newSender(t, client, queue)
	for _, id := range []string{"one", "two"} {
		send(t, sender, &azservicebus.Message{Body: []byte(id), SessionID: pointer(id)})
	}
	for range 2 {
		receiver := must(client.AcceptNextSessionForQueue(within(t), queue, nil))(t)
		message := one(t, receiver)
		equal(t, "the body", string(message.Body), receiver.SessionID())
		equal(t, "the session of the message", *message.SessionID, receiver.SessionID())
		check(t, receiver.SetSessionState(within(t), []byte("seen "+receiver.SessionID()), nil))
		check(t, receiver.RenewSessionLock(within(t), nil))
		check(t, receiver.CompleteMessage(within(t), message, nil))
		check(t, receiver.Close(within(t)))
	}
	receiver := acceptSession(t, client, queue, "one")
	equal(t, "the state", string(must(receiver.GetSessionState(within(t), nil))(t)), "seen one")
}
