"""Small servers on 127.0.0.1 that stand in for storages, each with a log of its
requests.
"""
