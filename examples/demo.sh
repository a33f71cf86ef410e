#!/usr/bin/env bash
# make demo: builds gpuwire, starts a server on loopback on the best device there is, and runs vector_add through it.
set -eu
cd "$(dirname "$0")/.."

nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)
if [ -z "$nvcc" ]; then
  echo "make demo needs nvcc of the CUDA Toolkit 13, and found none in PATH or /usr/local/cuda/bin" >&2
  exit 1
fi
cmake/install_packages.sh --build-only

build=build
[ -f $build/build.ninja ] || cmake --preset release >$build.configure.log 2>&1 ||
  { cat $build.configure.log >&2; exit 1; }
rm -f $build.configure.log
targets="gpuwire gpuwire-run gpuwire-info gpuwire-serve gpuwire-login gpuwire-keeper gpuwire-worker cuda_stub
  gpuwire_software_cuda gpuwire_example_vector_add"
[ -x $build/lib/gpuwire/commands/gpuwire-worker ] || echo "building (the first time takes some minutes)"
# Ninja shows its progress on a terminal; elsewhere only what goes wrong.
if [ -t 1 ]; then
  ninja -C $build $targets
else
  ninja -C $build $targets >$build/demo_build.log 2>&1 || { tail -40 $build/demo_build.log >&2; exit 1; }
fi

log=$(mktemp)
trap 'kill "$server" 2>/dev/null; wait "$server" 2>/dev/null; rm -f "$log" "$log.err"' EXIT
$build/bin/gpuwire serve --listen 127.0.0.1:0 --device auto >"$log" 2>"$log.err" &
server=$!
while ! grep -q 'listening on' "$log"; do
  kill -0 "$server" 2>/dev/null || { echo "the server did not start:" >&2; cat "$log.err" >&2; exit 1; }
  sleep 0.05
done
address=$(sed -n 's/.*listening on \([^ ,]*\).*/\1/p' "$log" | head -1)
echo "server: $(grep 'listening on' "$log")"
echo "running build/examples/vector_add through it; the program sees no GPU but the server's"
echo
$build/bin/gpuwire run --server "$address" --stats -- $build/examples/vector_add
