"""Inputs at URLs: what is listed, and reading them in order. Requests are those of :mod:`tokenlake.store.remote`."""
