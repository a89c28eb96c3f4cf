"""The function libraries that Kubernetes adds to CEL's standard functions, one module each."""
