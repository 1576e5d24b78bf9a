"""Where objects are: an S3 endpoint, or a directory. One Protocol, two who keep it."""
