"""Conditions for the marker `gpu_where`, which conftest.py explains."""


def ON_CPU_ALONE(case):
    """For what happens before any backend is asked: paths, metadata, arguments."""
    return False
