"""What goes on in a home beside the requests: jobs, events, the growing pool; and what is said of bugs."""
