# The CPU server. `./dev image` builds it, runs it and streams a request through it.
FROM debian:bookworm-slim AS build
ENV XDG_CACHE_HOME=/cache
WORKDIR /src
# The package lists live in ./dev alone. Wheels come from build/wheels where ./dev image has laid
# them into the context, else from the index.
COPY dev ./
RUN --mount=type=bind,target=/context \
    mkdir -p /cache/aft-serve && \
    if [ -d /context/build/wheels ]; then \
      ln -s /context/build/wheels /cache/aft-serve/wheels; \
    fi && \
    ./dev setup && \
    rm -rf /cache/aft-serve/wheels
COPY CMakeLists.txt CMakePresets.json ./
COPY base base
COPY cmake cmake
COPY proto proto
COPY model model
COPY server server
COPY client client
RUN --mount=type=cache,target=/cache/aft-serve/ccache \
    ./dev build --preset image aft-server aftctl aftload aft-convert aft_descriptors && \
    cmake --install build/image --prefix /opt/aft --strip

FROM debian:bookworm-slim
LABEL org.opencontainers.image.title="aft-serve" \
      org.opencontainers.image.description="gRPC server for attention-free transformers (CPU)" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN apt-get update && \
    apt-get install -y --no-install-recommends \
      libgrpc++1.51 libprotobuf32 libabsl20220623 libprometheus-cpp-pull1.0 libhwy1 libre2-9 libedit2 libhiredis0.14 && \
    rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/aft /opt/aft
# Nothing may be missing at run time, and a wrong package list above must fail here, not in a cluster.
RUN ! ldd /opt/aft/bin/* | grep 'not found'
COPY model/zoo /models
COPY deploy/config/container.textproto /etc/aft/server.textproto
ENV PATH=/opt/aft/bin:$PATH
USER 10001:10001
# gRPC, metrics.
EXPOSE 8500 8501
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
  CMD ["/opt/aft/bin/aftctl", "health", "--address=127.0.0.1:8500"]
ENTRYPOINT ["/opt/aft/bin/aft-server"]
CMD ["--config=/etc/aft/server.textproto"]
