"""The doctor's sessions: made by the steps that every session is made by, used for a moment, destroyed."""
