"""For plugin authors: the contract suites a back end must pass."""
