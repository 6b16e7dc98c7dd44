"""From records to the rows of tables, in numbers."""
