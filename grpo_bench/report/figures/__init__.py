"""The charts of a report: their numbers, their drawing, and their files."""
