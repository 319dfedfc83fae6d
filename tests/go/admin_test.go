package conformance

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

func TestWhatIsNotThereIsNotFound(t *testing.T) {
	administration := newAdmin(t)
	topic := newName("go")
	if queue := must(administration.GetQueue(within(t), topic, nil))(t); queue != nil {
		t.Fatal("there is a queue")
	}
	if found := must(administration.GetTopic(within(t), topic, nil))(t); found != nil {
		t.Fatal("there is a topic")
	}
	if found := must(administration.GetTopicRuntimeProperties(within(t), topic, nil))(t); found != nil {
		t.Fatal("there are properties of a topic")
	}
	must(administration.CreateTopic(within(t), topic, nil))(t)
	if found := must(administration.GetSubscription(within(t), topic, "none", nil))(t); found != nil {
		t.Fatal("there is a subscription")
	}
}

func TestDestinationsComeBackAsTheyWereSent(t *testing.T) {
	administration := newAdmin(t)
	target := newQueue(t, nil)
	for _, scheme := range []string{"sb", "https"} {
		destination := scheme + "://Some.Host/" + strings.ToUpper(target)
		queue := newQueue(t, &admin.QueueProperties{
			ForwardTo: &destination, ForwardDeadLetteredMessagesTo: &destination,
		})
		found := must(administration.GetQueue(within(t), queue, nil))(t)
		equal(t, "ForwardTo", *found.ForwardTo, destination)
		equal(t, "ForwardDeadLetteredMessagesTo", *found.ForwardDeadLetteredMessagesTo, destination)
		updated := must(administration.UpdateQueue(within(t), queue, found.QueueProperties, nil))(t)
		equal(t, "ForwardTo after an update", *updated.ForwardTo, destination)
	}
}

func TestASubscriptionHasBeenAccessedWhenItIsMade(t *testing.T) {
	administration := newAdmin(t)
	topic := newName("go")
	must(administration.CreateTopic(within(t), topic, nil))(t)
	must(administration.CreateSubscription(within(t), topic, "all", nil))(t)
	made := must(administration.GetSubscriptionRuntimeProperties(within(t), topic, "all", nil))(t)
	equal(t, "AccessedAt", made.AccessedAt, made.CreatedAt)
	if made.CreatedAt.Before(time.Now().Add(-time.Hour)) {
		t.Fatalf("it was made at %v", made.CreatedAt)
	}
	// A queue and a topic that nobody has used have no such time, as in Azure.
	above := must(administration.GetTopicRuntimeProperties(within(t), topic, nil))(t)
	equal(t, "AccessedAt of the topic is none", above.AccessedAt.IsZero(), true)
}

func TestAuthorizationRulesComeBackAsTheyWereSent(t *testing.T) {
	key := "MTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTE="
	rule := admin.AuthorizationRule{
		KeyName: pointer("own"), PrimaryKey: &key, SecondaryKey: &key,
		AccessRights: []admin.AccessRight{admin.AccessRightManage, admin.AccessRightSend, admin.AccessRightListen},
	}
	queue := newQueue(t, &admin.QueueProperties{AuthorizationRules: []admin.AuthorizationRule{rule}})
	found := must(newAdmin(t).GetQueue(within(t), queue, nil))(t)
	equal(t, "the number of rules", len(found.AuthorizationRules), 1)
	back := found.AuthorizationRules[0]
	equal(t, "the name", *back.KeyName, "own")
	equal(t, "the key", *back.PrimaryKey, key)
	equal(t, "the time of creation is told", back.CreatedTime != nil, false)
	equal(t, "the time of change is told", back.ModifiedTime != nil, false)
}

func TestQueuesAreListedAndTheNamespaceIsDescribed(t *testing.T) {
	administration := newAdmin(t)
	wanted := map[string]bool{newQueue(t, nil): true, newQueue(t, nil): true}
	pages := administration.NewListQueuesPager(&admin.ListQueuesOptions{MaxPageSize: 1})
	for pages.More() && len(wanted) > 0 {
		for _, queue := range must(pages.NextPage(within(t)))(t).Queues {
			delete(wanted, queue.QueueName)
		}
	}
	equal(t, "the number of queues that were not listed", len(wanted), 0)
	namespace := must(administration.GetNamespaceProperties(within(t), nil))(t)
	equal(t, "the tier", namespace.SKU, "Standard")
	if _, err := url.Parse(namespace.Name); err != nil || namespace.CreatedTime.IsZero() {
		t.Fatalf("the namespace is %+v", namespace)
	}
}
