"""The admin port: health, metrics and the operator's questions. JSON over HTTP."""
