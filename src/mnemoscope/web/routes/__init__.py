"""The routes of pages, each with its JSON twin."""
