"""An app with handlers that do what handlers should not. They tell their test what happens over a socket."""
