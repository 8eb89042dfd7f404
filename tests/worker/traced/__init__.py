"""An app that writes each span as a line, as a site's own app would set up OpenTelemetry."""
