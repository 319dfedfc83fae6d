package conformance

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

var parts = regexp.MustCompile(`Endpoint=sb://([^:;/]+):(\d+).*SharedAccessKeyName=([^;]+);SharedAccessKey=([^;]+)`)

// withToken is a connection string with a signature for a resource, as the SDK's own tests make it.
func withToken(t *testing.T, resource func(host string) string) string {
	t.Helper()
	found := parts.FindStringSubmatch(connectionString(t))
	host, port, name, key := found[1], found[2], found[3], found[4]
	expiry := fmt.Sprint(time.Now().Add(time.Hour).Unix())
	signed := strings.ToLower(url.QueryEscape(resource(host)))
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(signed + "\n" + expiry))
	signature := url.QueryEscape(base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	return fmt.Sprintf(
		"Endpoint=sb://%s:%s;SharedAccessSignature=SharedAccessSignature sr=%s&sig=%s&se=%s&skn=%s;"+
			"UseDevelopmentEmulator=true",
		host, port, signed, signature, expiry, name,
	)
}

func TestATokenForABareHostOpensTheNamespace(t *testing.T) {
	text := withToken(t, func(host string) string { return host })
	queue := newName("go")
	administration := must(admin.NewClientFromConnectionString(text, nil))(t)
	must(administration.CreateQueue(within(t), queue, nil))(t)
	client := must(azservicebus.NewClientFromConnectionString(text, nil))(t)
	t.Cleanup(func() { _ = client.Close(context.Background()) })
	sender, receiver := newSender(t, client, queue), newReceiver(t, client, queue, nil)
	send(t, sender, &azservicebus.Message{Body: []byte("tea")})
	check(t, receiver.CompleteMessage(within(t), one(t, receiver), nil))
}

func TestATokenForAnEntityOpensNoOther(t *testing.T) {
	mine, other := newQueue(t, nil), newQueue(t, nil)
	text := withToken(t, func(host string) string { return host + "/" + mine })
	client := must(azservicebus.NewClientFromConnectionString(text, nil))(t)
	t.Cleanup(func() { _ = client.Close(context.Background()) })
	send(t, newSender(t, client, mine), &azservicebus.Message{Body: []byte("tea")})
	err := newSender(t, client, other).SendMessage(within(t), &azservicebus.Message{}, nil)
	var refused *azservicebus.Error
	if !errors.As(err, &refused) || refused.Code != azservicebus.CodeUnauthorizedAccess {
		t.Fatalf("not refused for want of a right, but: %v", err)
	}
}
