"""The processes of a worker: a supervisor and its workers, and the sandbox of a suspect."""
