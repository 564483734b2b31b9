"""The contract of the API, and later its server."""
