"""The S3 face: match, authenticate, authorise, call, render."""
