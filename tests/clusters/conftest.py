def pytest_collection_modifyitems(items):
    """Let the long tests come first."""
    items.sort(key=lambda item: not item.get_closest_marker("long"))
