"""What a session needs before its first timed step."""
