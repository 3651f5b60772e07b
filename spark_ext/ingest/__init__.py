"""Inboxes: rows that senders push, kept before they are acknowledged, and read by jobs like any other input."""
