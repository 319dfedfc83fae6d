"""Postbus: a self-hosted, durable service bus speaking the Azure Service Bus wire protocol."""
