#!/usr/bin/env bash
# make packages: builds what users install, and packs it. The packages come to build/packages.
# usage: make_packages.sh [--quick]: with it nothing is built, and what there is is packed with little compression.
set -eu
cd "$(dirname "$0")/.."
build=${GPUWIRE_BUILD:-build}

settings=""
if [ "${1:-}" = --quick ]; then
  settings="-D CPACK_DEBIAN_COMPRESSION_TYPE=gzip"

else
  cmake/install_packages.sh
  [ -f "$build/build.ninja" ] || cmake --preset release
  ninja -C "$build" gpuwire_installed
fi
rm -rf "$build/packages"
for generator in DEB TGZ; do
  cpack --config "$build/CPackConfig.cmake" -G $generator $settings >"$build/packages.log" 2>&1 ||
    { cat "$build/packages.log" >&2; exit 1; }
done
rm -rf "$build/packages/_CPack_Packages"
ls -l "$build/packages"
