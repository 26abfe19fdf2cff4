"""Browser pages for watching policies and playing against them, and recorded episodes."""
