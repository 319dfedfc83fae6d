// Command example sends a message to the queue orders, receives it and completes it.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

const local = "Endpoint=sb://localhost:5672;SharedAccessKeyName=RootManageSharedAccessKey;" +
	"SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true"

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	connection := os.Getenv("POSTBUS_CONNECTION_STRING")
	if connection == "" {
		connection = local
	}
	bus, err := azservicebus.NewClientFromConnectionString(connection, nil)
	if err != nil {
		return err
	}
	defer bus.Close(context.Background())
	sender, err := bus.NewSender("orders", nil)
	if err != nil {
		return err
	}
	message := &azservicebus.Message{Body: []byte("two cups of tea")}
	if err := sender.SendMessage(ctx, message, nil); err != nil {
		return err
	}
	receiver, err := bus.NewReceiverForQueue("orders", nil)
	if err != nil {
		return err
	}
	messages, err := receiver.ReceiveMessages(ctx, 1, nil)
	if err != nil {
		return err
	}
	for _, received := range messages {
		fmt.Printf("received: %s\n", received.Body)
		if err := receiver.CompleteMessage(ctx, received, nil); err != nil {
			return err
		}
	}
	return nil
}
