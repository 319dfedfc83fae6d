// Package conformance is the official Go SDK against a running broker.
//
// Run it by hand with
//
//	POSTBUS_CONNECTION_STRING='Endpoint=…' SSL_CERT_FILE=…/tls/ca.pem go test ./...
package conformance

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

// within bounds every call of a test; a broker that does not answer fails it.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func connectionString(t *testing.T) string {
	t.Helper()
	text := os.Getenv("POSTBUS_CONNECTION_STRING")
	if text == "" {
		t.Skip("POSTBUS_CONNECTION_STRING is not set")
	}
	return text
}

func must[T any](value T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		check(t, err)
		return value
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%T: %v", err, err)
	}
}

func equal[T comparable](t *testing.T, what string, got T, wanted T) {
	t.Helper()
	if got != wanted {
		t.Fatalf("%s is %v, not %v", what, got, wanted)
	}
}

func pointer[T any](value T) *T { return &value }

func newName(prefix string) string {
	random := make([]byte, 6)
	_, _ = rand.Read(random)
	return prefix + "-" + hex.EncodeToString(random)
}

// The admin client speaks https whatever the connection string says; SSL_CERT_FILE names its CA.
func newAdmin(t *testing.T) *admin.Client {
	t.Helper()
	return must(admin.NewClientFromConnectionString(connectionString(t), nil))(t)
}

func newClient(t *testing.T) *azservicebus.Client {
	t.Helper()
	client := must(azservicebus.NewClientFromConnectionString(connectionString(t), nil))(t)
	t.Cleanup(func() { _ = client.Close(context.Background()) })
	return client
}

func newQueue(t *testing.T, properties *admin.QueueProperties) string {
	t.Helper()
	name := newName("go")
	must(newAdmin(t).CreateQueue(within(t), name, &admin.CreateQueueOptions{Properties: properties}))(t)
	return name
}

func newSender(t *testing.T, client *azservicebus.Client, name string) *azservicebus.Sender {
	t.Helper()
	sender := must(client.NewSender(name, nil))(t)
	t.Cleanup(func() { _ = sender.Close(context.Background()) })
	return sender
}

func newReceiver(
	t *testing.T, client *azservicebus.Client, name string, options *azservicebus.ReceiverOptions,
) *azservicebus.Receiver {
	t.Helper()
	receiver := must(client.NewReceiverForQueue(name, options))(t)
	t.Cleanup(func() { _ = receiver.Close(context.Background()) })
	return receiver
}

func send(t *testing.T, sender *azservicebus.Sender, message *azservicebus.Message) {
	t.Helper()
	check(t, sender.SendMessage(within(t), message, nil))
}

// receiving is what receivers of queues and of sessions have in common.
type receiving interface {
	ReceiveMessages(
		context.Context, int, *azservicebus.ReceiveMessagesOptions,
	) ([]*azservicebus.ReceivedMessage, error)
}

// one waits for exactly one message.
func one(t *testing.T, receiver receiving) *azservicebus.ReceivedMessage {
	t.Helper()
	messages := must(receiver.ReceiveMessages(within(t), 1, nil))(t)
	if len(messages) != 1 {
		t.Fatalf("%d messages came, not one", len(messages))
	}
	return messages[0]
}

// none waits for a second, in which nothing may come.
func none(t *testing.T, receiver receiving) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	messages, err := receiver.ReceiveMessages(ctx, 1, nil)
	if len(messages) > 0 || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%d messages came, with the error %v", len(messages), err)
	}
}
