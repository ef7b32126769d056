"""What every request passes before its page: the prefix of a proxy, security, and pages for errors."""
