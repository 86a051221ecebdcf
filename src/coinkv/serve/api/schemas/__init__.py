"""Shapes of bodies and replies, from which the OpenAPI document is made."""
