"""Topics and subscriptions that are switched off, or deleted under their users."""

from __future__ import annotations

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusError,
)
from azure.servicebus.management import EntityStatus

from tests.support.administration import Administration
from tests.support.bus import Bus, Subscription, Topic, texts, whole_text
from tests.support.waiting import until


@pytest.mark.parametrize("status", [EntityStatus.DISABLED, EntityStatus.SEND_DISABLED])
async def test_a_disabled_topic_takes_nothing_and_keeps_what_it_gave(
    bus: Bus,
    topic: Topic,
    subscription: Subscription,
    administration: Administration,
    status: EntityStatus,
) -> None:
    """semantics B §11: stored messages stay receivable."""
    await bus.send(topic, ServiceBusMessage("before"))
    administration.update(topic, status=status)
    assert administration.client.get_topic(topic).status == status
    with pytest.raises(MessagingEntityDisabledError):
        await bus.send(topic, ServiceBusMessage("meanwhile"))
    assert texts(await bus.receive(subscription)) == ["before"]
    administration.update(topic, status=EntityStatus.ACTIVE)
    await bus.send(topic, ServiceBusMessage("after"))
    assert texts(await bus.receive(subscription)) == ["after"]


@pytest.mark.parametrize("status", [EntityStatus.DISABLED, EntityStatus.RECEIVE_DISABLED])
async def test_a_disabled_subscription_gets_its_copies_and_gives_none(
    bus: Bus,
    topic: Topic,
    subscription: Subscription,
    administration: Administration,
    status: EntityStatus,
) -> None:
    """semantics B §11: only receiving fails."""
    administration.update(subscription, status=status)
    await bus.send(topic, ServiceBusMessage("meanwhile"))
    assert administration.counts(subscription).active_message_count == 1
    with pytest.raises(MessagingEntityDisabledError):
        await bus.receive(subscription)
    administration.update(subscription, status=EntityStatus.ACTIVE)
    assert texts(await bus.receive(subscription)) == ["meanwhile"]


async def test_what_is_not_there_is_not_found(bus: Bus, topic: Topic) -> None:
    """wire §7.2: the SDK says so, or has it among the causes of another error."""
    for attempt in (
        bus.send(Topic("no-such-topic"), ServiceBusMessage("x")),
        bus.receive(Subscription(topic, "no-such-subscription")),
        bus.receive(Subscription(Topic("no-such-topic"), "s")),
    ):
        with pytest.raises(ServiceBusError) as refused:
            await attempt
        assert isinstance(
            refused.value, (MessagingEntityNotFoundError, ServiceBusAuthenticationError)
        )
        assert "could not be found" in whole_text(refused.value)


@pytest.mark.parametrize("kind", ["sender", "receiver"])
@pytest.mark.parametrize("gone", ["topic", "subscription"])
async def test_open_links_notice_that_what_they_use_was_deleted(
    bus: Bus,
    topic: Topic,
    subscription: Subscription,
    administration: Administration,
    kind: str,
    gone: str,
) -> None:
    """wire §7.3: detach with not-found; a sender does not mind a subscription's end."""
    sender = await bus.open_sender(topic)
    await sender.send_messages(ServiceBusMessage("before"))
    receiver = await bus.open_receiver(subscription)
    await receiver.receive_messages(max_wait_time=5)
    if gone == "topic":
        administration.client.delete_topic(topic)
    else:
        administration.client.delete_subscription(*subscription)

    async def refused() -> bool:
        try:
            if kind == "sender":
                await sender.send_messages(ServiceBusMessage("after"))
            else:
                await receiver.receive_messages(max_wait_time=1)
        except (MessagingEntityNotFoundError, ServiceBusAuthenticationError) as error:
            return "could not be found" in whole_text(error)
        except ServiceBusError:
            return False
        return False

    if (kind, gone) == ("sender", "subscription"):
        assert not await refused()
    else:
        await until("the link says that it is gone", refused)


async def test_open_links_work_while_others_subscribe_and_leave(
    bus: Bus, topic: Topic, subscription: Subscription, administration: Administration
) -> None:
    sender = await bus.open_sender(topic)
    receiver = await bus.open_receiver(subscription, receive_mode="receiveanddelete")
    for n in range(5):
        other = administration.make_subscription(topic, "sys.Label = 'x'")
        await sender.send_messages(ServiceBusMessage(f"{n}"))
        [message] = await receiver.receive_messages(max_wait_time=10)
        assert texts([message]) == [f"{n}"]
        administration.client.delete_subscription(*other)
