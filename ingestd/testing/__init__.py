"""For plugin authors: the contract suites a back end or a sink must pass, and a real daemon for their tests."""
