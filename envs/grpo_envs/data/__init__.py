"""Small real data sets and their licences."""
