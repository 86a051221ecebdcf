"""What runs inside a worker process; the files of peers import nothing of coinkv but the wire."""
