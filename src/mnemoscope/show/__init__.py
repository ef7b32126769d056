"""What people see: figures, pages, the report."""
