# Builds an image of gpuwire's server from the packages of `make packages`.
# docker build -f packaging/docker/server.Dockerfile -t gpuwire-server .
# docker run --gpus all -p 9750:9750 -v /etc/gpuwire/identity:/etc/gpuwire/identity -v $PWD/server.toml:/etc/gpuwire/server.toml gpuwire-server
FROM debian:12-slim
COPY build/packages/gpuwire-client_*.deb build/packages/gpuwire-server_*.deb /tmp/
RUN apt-get update && apt-get install -y --no-install-recommends /tmp/gpuwire-*.deb && rm -rf /tmp/gpuwire-*.deb /var/lib/apt/lists/*
# The package's configuration listens on loopback, which in a container is the container's own.
COPY packaging/docker/server.toml /etc/gpuwire/server.toml
# A container has no service manager that makes these folders. The server runs as the container's root, within the
# container's limits.
RUN install -d -m 0700 /var/cache/gpuwire && install -d -m 0700 /run/gpuwire
# NVIDIA's container toolkit puts the driver's libraries and device files here; compute and utility are libcuda and NVML.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
EXPOSE 9750 9751
STOPSIGNAL SIGTERM
ENTRYPOINT ["gpuwire", "serve"]
CMD ["--config", "/etc/gpuwire/server.toml", "--module-cache", "/var/cache/gpuwire/modules"]
