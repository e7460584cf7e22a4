"""Builds from versions that are there: tokens packed again, and several datasets mixed into one."""
