# Extends any image with glibc 2.31 or later, so that its CUDA programs use a remote GPU.
# docker build -f packaging/docker/client.Dockerfile --build-arg BASE=pytorch/pytorch -t pytorch-remote .
# docker run -e GPUWIRE_SERVER=gpuhost:9750 -v $HOME/.config/gpuwire:/root/.config/gpuwire:ro pytorch-remote python train.py
ARG BASE=debian:12-slim
FROM ${BASE}
ADD build/packages/gpuwire-client-*.tar.gz /opt/
RUN ln -s /opt/gpuwire-client-* /opt/gpuwire && ln -s /opt/gpuwire/bin/gpuwire /usr/local/bin/gpuwire
ENTRYPOINT ["gpuwire", "run", "--"]
CMD ["bash"]
