"""Conversations to text: turns in one form, a template, and what of it a trainer learns from."""
