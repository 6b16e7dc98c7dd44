"""The claim ledger: evidence, verdicts, and its pages."""
