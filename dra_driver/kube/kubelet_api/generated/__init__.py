"""Made from ../protos by `make generate`; not written by hand."""
