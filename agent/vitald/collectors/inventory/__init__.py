"""What this node should have, compared with what it has."""
