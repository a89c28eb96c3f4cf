# One image for the node plugin, the controller, IMEX daemons, the cleanup job and dractl.
#
#   docker build -t REGISTRY/gpu-dra-driver:0.1.0 .
#   docker buildx build --platform linux/amd64,linux/arm64 --sbom=true --provenance=mode=max --push -t … .
#
# BASE and GO, in which the hook program is built, are pinned by the digests of their indexes, which have both
# architectures; `make bases` renews them. What is installed on top is pinned, file by file. Any base with CPython 3.12 or
# newer and glibc works; wheels of all dependencies exist for both architectures, so nothing is compiled.
# `make image-check` does the same without a registry: it installs into a clean virtual environment, starts every entry
# point, and reports the size.
ARG BASE=python:3.13-slim-bookworm@sha256:2325bb286ec344af3e5898cc224b5844e2707ac6e26b1632516fd3edc84a5e26
ARG GO=golang:1.25-bookworm@sha256:3b4a11519ad929d1e1d261a12cff056f0c85b735253d7d861346b9c6f8b36437

# The hook program for hosts that have none: nvidia-cdi-hook of NVIDIA's container toolkit (Apache-2.0), from its source.
# The module proxy gives it, Go's checksum database vouches for it and for all that it is made of, and TOOLKIT_SUM pins it.
# It is linked statically, because it runs on the host, whose C library may be older, or another one. It never loads NVML.
FROM ${GO} AS hook
ARG TOOLKIT=v1.20.0
ARG TOOLKIT_SUM=h1:RMOgXeDM7CdPOOLc18NCTitArQFqT2NUgUBB34JijDg=
ENV GOTOOLCHAIN=local CGO_ENABLED=1 GOBIN=/hook
RUN module=github.com/NVIDIA/nvidia-container-toolkit \
 && go install -trimpath -tags netgo,osusergo \
      -ldflags "-s -w -X ${module}/internal/info.version=${TOOLKIT#v} -linkmode=external -extldflags '-static -Wl,--unresolved-symbols=ignore-in-object-files'" \
      ${module}/cmd/nvidia-cdi-hook@${TOOLKIT} \
 && go version -m /hook/nvidia-cdi-hook | grep -F "${TOOLKIT_SUM}" \
 && /hook/nvidia-cdi-hook --version | grep -F "version ${TOOLKIT#v}" \
 && cp "$(go env GOMODCACHE)/github.com/!n!v!i!d!i!a/nvidia-container-toolkit@${TOOLKIT}/LICENSE" /hook/nvidia-cdi-hook.LICENSE

FROM ${BASE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /src
COPY pyproject.toml README.md LICENSE requirements.txt requirements-build.txt ./
COPY dra_driver ./dra_driver
COPY kubelet_plugin ./kubelet_plugin
COPY controller ./controller
COPY deviceclasses ./deviceclasses
COPY examples ./examples
# Files of dependencies are those whose hashes are in requirements*.txt (`make lock`), and no others, from whatever index;
# `--only-binary`: a missing wheel fails here instead of asking for a compiler. Without an index the last install fails when
# these are not what pyproject.toml asks for.
RUN python -m venv /opt/build \
 && /opt/build/bin/pip install --require-hashes --only-binary :all: --requirement requirements-build.txt \
 && /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
 && python -m venv /opt/gpu-dra \
 && /opt/gpu-dra/bin/pip install --require-hashes --only-binary :all: --requirement requirements.txt \
 && /opt/gpu-dra/bin/pip install --no-index --find-links /wheels "gpu-dra-driver[cli,otel,webhook]" \
 && /opt/gpu-dra/bin/pip uninstall --yes pip \
 # Compiled once here: the root filesystem of the containers is read-only, and starts would compile each time.
 && /opt/gpu-dra/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/gpu-dra/lib

FROM ${BASE}
LABEL org.opencontainers.image.title="gpu-dra-driver" \
      org.opencontainers.image.description="A Dynamic Resource Allocation driver for NVIDIA GPUs on Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/gpu-dra /opt/gpu-dra
COPY --from=hook /hook /opt/gpu-dra/libexec
ENV PATH=/opt/gpu-dra/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# A base may have its standard library as source only, as official images of Python do.
RUN python -m compileall -q -j 0 --invalidation-mode unchecked-hash -x '/(site-packages|idlelib|tkinter|turtledemo)/' \
      "$(python -c 'import os; print(os.path.dirname(os.__file__))')"
# Without another user in the pod spec it runs without rights; the plugin's pod asks for root, because it needs it.
USER 65532:65532
CMD ["dractl", "--help"]
