"""Small real data, with its licence beside it."""
