"""Test tools for plugin authors: contract suites for back ends and sinks, and a real daemon."""
