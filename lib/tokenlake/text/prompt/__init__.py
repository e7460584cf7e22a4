"""Prompts: columns of a row become a prompt and its answer, by a template."""
