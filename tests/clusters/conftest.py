def pytest_collection_modifyitems(items):
    """Let the slow tests come first, lest the others wait for them in the end."""
    items.sort(key=lambda item: not item.get_closest_marker("slow"))
