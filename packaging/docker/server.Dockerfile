# gpuwire's server, from the packages that `make packages` has made.
# docker build -f packaging/docker/server.Dockerfile -t gpuwire-server .
# docker run --gpus all -p 9750:9750 -v /etc/gpuwire:/etc/gpuwire gpuwire-server
FROM debian:12-slim
COPY build/packages/gpuwire-client_*.deb build/packages/gpuwire-server_*.deb /tmp/
RUN apt-get update && apt-get install -y --no-install-recommends /tmp/gpuwire-*.deb && rm -rf /tmp/gpuwire-*.deb /var/lib/apt/lists/*
# NVIDIA's container toolkit puts the driver's libraries and device files here; compute and utility are libcuda and NVML.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
EXPOSE 9750
STOPSIGNAL SIGTERM
ENTRYPOINT ["gpuwire", "serve"]
CMD ["--config", "/etc/gpuwire/server.toml", "--module-cache", "/var/cache/gpuwire/modules"]
