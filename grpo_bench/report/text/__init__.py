"""Numbers as people read them: digits, captions, footnotes, Markdown, CSV and LaTeX."""
