# Three images: `server` (the last one, so the default) has only aft-server, aftctl and the shipped model;
# `server-cuda` is the same for GPUs too; `tools` adds the load generator, importers, trainer and a shell.
# `./dev image` builds and runs them; so far only on x86-64. The base is named by its digest; apt installs later
# fixes of Debian.
ARG BASE=debian:bookworm-slim@sha256:40b107342c492725bc7aacbe93a49945445191ae364184a6d24fedb28172f6f7

FROM ${BASE} AS packages
WORKDIR /src
# Only ./dev has the package lists. Wheels come from build/wheels if ./dev image has put them into the
# context, otherwise from the index.
COPY dev ./
RUN --mount=type=bind,target=/context \
    mkdir -p ~/.cache/aft-serve && \
    if [ -d /context/build/wheels ]; then ln -s /context/build/wheels ~/.cache/aft-serve/wheels; fi && \
    ./dev setup && \
    rm -rf ~/.cache/aft-serve/wheels
# The keys of ccache depend on it.
ENV LANG=C.UTF-8

FROM packages AS build
COPY CMakeLists.txt CMakePresets.json LICENSE ./
COPY base base
COPY cmake cmake
COPY proto proto
COPY model model
COPY server server
COPY client client
# For --version. With another revision this step runs again, but ccache has all files except the two that contain it.
ARG AFT_GIT_REVISION=unknown
RUN --mount=type=cache,target=/root/.cache/aft-serve/ccache \
    ./dev build --preset image && \
    cmake --install build/image --prefix /out/server --component server --strip && \
    cmake --install build/image --prefix /out/tools --component tools --strip && \
    rm -rf build

FROM packages AS build-cuda
RUN --mount=type=bind,target=/context \
    if [ -d /context/build/wheels ]; then ln -s /context/build/wheels ~/.cache/aft-serve/wheels; fi && \
    ./dev setup --cuda && \
    rm -rf ~/.cache/aft-serve/wheels
COPY --from=build /src ./
ARG AFT_GIT_REVISION=unknown
RUN --mount=type=cache,target=/root/.cache/aft-serve/ccache \
    ./dev build --preset image-cuda aft-server aftctl aft_descriptors && \
    cmake --install build/image-cuda --prefix /out/server --component server --strip && \
    rm -rf build

FROM ${BASE} AS runtime
# The release of Debian decides the versions; the image's own list of packages records them.
# hadolint ignore=DL3008
RUN apt-get update && apt-get upgrade -y && \
    apt-get install -y --no-install-recommends \
      libgrpc++1.51 libprotobuf32 libabsl20220623 libprometheus-cpp-core1.0 libhwy1 libre2-9 libedit2 libhiredis0.14 libutf8proc2 && \
    rm -rf /var/lib/apt/lists/* && \
    useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin aft
# Headers of these packages are compiled into the programs, so the images have their licences and their entries too.
RUN --mount=type=bind,from=packages,source=/usr/share/doc,target=/packages/doc \
    --mount=type=bind,from=packages,source=/var/lib/dpkg,target=/packages/dpkg \
    mkdir -p /var/lib/dpkg/status.d && \
    for package in libboost1.74-dev libcli11-dev nlohmann-json3-dev; do \
      mkdir -p "/usr/share/doc/$package" && \
      cp "/packages/doc/$package/copyright" "/usr/share/doc/$package/" && \
      dpkg-query --admindir=/packages/dpkg -s "$package" >"/var/lib/dpkg/status.d/$package" || exit 1; \
    done
COPY deploy/config/container.textproto /etc/aft/server.textproto
COPY deploy/rootfs.sh /

FROM runtime AS rootfs
RUN --mount=type=bind,from=build,source=/out/server,target=/opt/aft \
    /rootfs.sh /rootfs /opt/aft/bin/aft-server /opt/aft/bin/aftctl /bin/cp

FROM runtime AS rootfs-cuda
RUN --mount=type=bind,from=build-cuda,source=/out/server,target=/opt/aft \
    /rootfs.sh /rootfs /opt/aft/bin/aft-server /opt/aft/bin/aftctl /bin/cp

FROM runtime AS tools
LABEL org.opencontainers.image.vendor="aft-serve" \
      org.opencontainers.image.title="aft-serve-tools" \
      org.opencontainers.image.description="AFT Serve with its load generator, importers and trainer" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /out/server /out/tools /opt/aft/
COPY model/zoo /models
RUN case "$(ldd /opt/aft/bin/*)" in *'not found'*) exit 1 ;; esac
ENV PATH=/opt/aft/bin:$PATH
USER 10001:10001
CMD ["bash"]
ARG AFT_GIT_REVISION=unknown
LABEL org.opencontainers.image.revision=$AFT_GIT_REVISION

# There is no shell and no package manager, so an intruder finds no tools. `cp` is for the edge's sidecar,
# which copies the services' descriptors from this image.
FROM scratch AS service
LABEL org.opencontainers.image.vendor="aft-serve"
COPY model/zoo/austen-aft-local /models/austen-aft-local
ENV PATH=/opt/aft/bin:/bin
USER 10001:10001
# gRPC, metrics, HTTP.
EXPOSE 8500 8501 8080
STOPSIGNAL SIGTERM
# Some platforms restart an unhealthy container, so this asks what Kubernetes' liveness probe asks.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
  CMD ["/opt/aft/bin/aftctl", "health", "--address=127.0.0.1:8500", "--service=liveness"]
ENTRYPOINT ["/opt/aft/bin/aft-server"]
CMD ["--config=/etc/aft/server.textproto"]

# NVIDIA_DRIVER_CAPABILITIES says which parts of the driver NVIDIA's container toolkit should add.
FROM service AS server-cuda
LABEL org.opencontainers.image.title="aft-serve" \
      org.opencontainers.image.description="gRPC server for attention-free transformers (CPU and CUDA)" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=rootfs-cuda /rootfs /
COPY --from=build-cuda /out/server /opt/aft
ARG AFT_GIT_REVISION=unknown
LABEL org.opencontainers.image.revision=$AFT_GIT_REVISION

FROM service AS server
LABEL org.opencontainers.image.title="aft-serve" \
      org.opencontainers.image.description="gRPC server for attention-free transformers (CPU)" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=rootfs /rootfs /
COPY --from=build /out/server /opt/aft
ARG AFT_GIT_REVISION=unknown
LABEL org.opencontainers.image.revision=$AFT_GIT_REVISION
