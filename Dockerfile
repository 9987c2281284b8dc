# The server or a party of a federation. docs/operate.md says how to run it; compose.yaml is an example.
#
#   docker build -t colonnade .
#
# The image runs as a user without rights, with a read-only root file system. It writes only to the volume /state, and
# to /tmp, which should be a tmpfs. Pin BASE by its digest for a build that can be repeated.
ARG BASE=python:3.13-slim-bookworm

FROM ${BASE} AS build
ARG EXTRAS=serve,otel
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY constraints.txt ./
# The version of PyTorch that is tested. Where the package index has wheels with CUDA only (2 GB more), name PyTorch's
# index for CPUs: --build-arg TORCH_INDEX=URL.
ARG TORCH_INDEX=""
RUN python -m venv /opt/colonnade \
    && /opt/colonnade/bin/pip install --no-deps ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} \
       "$(grep '^torch==' constraints.txt)"
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src ./src
RUN /opt/colonnade/bin/pip install -c constraints.txt ".[${EXTRAS}]" \
    && /opt/colonnade/bin/pip uninstall --yes pip

FROM ${BASE}
LABEL org.opencontainers.image.title="Colonnade" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --system --gid 10001 colonnade \
    && useradd --system --uid 10001 --gid 10001 --home-dir /state --no-create-home --shell /usr/sbin/nologin colonnade \
    && install --directory --owner=10001 --group=10001 --mode=0700 /state
COPY --from=build /opt/colonnade /opt/colonnade
ENV PATH=/opt/colonnade/bin:$PATH \
    HOME=/tmp \
    OMP_NUM_THREADS=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /state
VOLUME /state
# The server's port, and its HTTP endpoint for predictions. A party opens no port.
EXPOSE 7450 7460
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=15s --start-period=120s --retries=3 CMD ["colonnade", "health", "/state"]
ENTRYPOINT ["colonnade"]
CMD ["--help"]
