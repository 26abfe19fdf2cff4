"""Worker processes that step environments of other libraries, on this machine or on a Ray cluster."""
