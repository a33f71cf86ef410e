# The packages: one for each component, and a tarball of the client. `make packages` runs CPack.
set(CPACK_PACKAGE_NAME gpuwire)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_VENDOR "gpuwire")
set(CPACK_PACKAGE_CONTACT "gpuwire maintainers <maintainers@gpuwire.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
set(CPACK_GENERATOR DEB)
set(CPACK_COMPONENTS_ALL client server)
if(TARGET gpuwire_slurm)
  list(APPEND CPACK_COMPONENTS_ALL slurm)
endif()
set(CPACK_THREADS 1)
# Files of /etc are named by their whole path.
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
# Strips what it takes the symbols from.
set(CPACK_DEBIAN_DEBUGINFO_PACKAGE ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_POST_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/installed_size.cmake)

set(CPACK_DEBIAN_CLIENT_PACKAGE_NAME gpuwire-client)
set(CPACK_COMPONENT_CLIENT_DESCRIPTION "CUDA programs on machines without a GPU: client
 Runs CUDA programs, unchanged, on the GPUs of a gpuwire server: libcuda.so.1,
 libnvidia-ml.so.1 and nvidia-smi that speak to it, and gpuwire run and info.")
set(CPACK_DEBIAN_CLIENT_PACKAGE_DEPENDS "libc6 (>= ${GPUWIRE_CLIENT_GLIBC})")
set(CPACK_DEBIAN_CLIENT_PACKAGE_SUGGESTS "libucx0 (>= 1.13)")
set(CPACK_DEBIAN_CLIENT_PACKAGE_CONTROL_EXTRA ${CMAKE_CURRENT_LIST_DIR}/debian/client/conffiles)

# The server is linked against this machine's C library.
execute_process(COMMAND ldd --version OUTPUT_VARIABLE ldd_version ERROR_QUIET)
string(REGEX MATCH "[0-9]+\\.[0-9]+" own_glibc "${ldd_version}")
set(CPACK_DEBIAN_SERVER_PACKAGE_NAME gpuwire-server)
set(CPACK_COMPONENT_SERVER_DESCRIPTION "CUDA programs on machines without a GPU: server
 Offers this machine's GPUs to tenants on other machines: admission, quotas and
 scheduling, a confined process for each session, top, status and metrics, and
 a device in software for machines without a GPU.")
string(CONCAT CPACK_DEBIAN_SERVER_PACKAGE_DEPENDS
  "gpuwire-client (= ${PROJECT_VERSION}), libc6 (>= ${own_glibc}), libstdc++6 (>= 12), libgcc-s1, zlib1g, "
  "adduser | systemd")
set(CPACK_DEBIAN_SERVER_PACKAGE_SUGGESTS "logrotate, prometheus, libucx0 (>= 1.13)")
set(server_scripts ${CMAKE_CURRENT_LIST_DIR}/debian/server)
set(CPACK_DEBIAN_SERVER_PACKAGE_CONTROL_EXTRA ${server_scripts}/conffiles ${server_scripts}/postinst
  ${server_scripts}/prerm ${server_scripts}/postrm)

# The plugins are of the Slurm whose header was there: another major release refuses them.
set(CPACK_DEBIAN_SLURM_PACKAGE_NAME gpuwire-slurm)
set(CPACK_COMPONENT_SLURM_DESCRIPTION "CUDA programs on machines without a GPU: Slurm
 Lets Slurm hand out the GPUs of gpuwire servers: srun --gpuwire=2, licences for
 Slurm's queue, and a credential for each job that its prolog makes and its
 epilog takes back.")
set(CPACK_DEBIAN_SLURM_PACKAGE_DEPENDS
  "gpuwire-client (= ${PROJECT_VERSION}), libc6 (>= ${own_glibc}), python3 (>= 3.9)")
set(CPACK_DEBIAN_SLURM_PACKAGE_SUGGESTS "slurm-client, openssh-client")
set(CPACK_DEBIAN_SLURM_PACKAGE_CONTROL_EXTRA ${CMAKE_CURRENT_LIST_DIR}/debian/slurm/conffiles)

# The client in one folder, for machines without a package manager: `cpack -G TGZ`.
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_CURRENT_LIST_DIR}/tarball.cmake)

include(CPack)
