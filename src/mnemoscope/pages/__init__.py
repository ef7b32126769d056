"""Pure functions from an atlas to the data of a page: plain dicts and lists, no framework, no markup."""
