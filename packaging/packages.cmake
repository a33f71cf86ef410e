# The packages: a .deb and an .rpm for each component, and tarballs. `make packages` runs CPack.
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
set(CPACK_DEBIAN_CLIENT_PACKAGE_DEPENDS "libc6 (>= ${GPUWIRE_OLDEST_GLIBC})")
set(CPACK_DEBIAN_CLIENT_PACKAGE_SUGGESTS "libucx0 (>= 1.13)")
set(CPACK_DEBIAN_CLIENT_PACKAGE_CONTROL_EXTRA ${CMAKE_CURRENT_LIST_DIR}/debian/client/conffiles
  ${CMAKE_CURRENT_LIST_DIR}/debian/client/prerm)

# The plugins for Slurm are linked against this machine's C library.
execute_process(COMMAND ldd --version OUTPUT_VARIABLE ldd_version ERROR_QUIET)
string(REGEX MATCH "[0-9]+\\.[0-9]+" own_glibc "${ldd_version}")
set(CPACK_DEBIAN_SERVER_PACKAGE_NAME gpuwire-server)
set(CPACK_COMPONENT_SERVER_DESCRIPTION "CUDA programs on machines without a GPU: server
 Offers this machine's GPUs to tenants on other machines: admission, quotas and
 scheduling, a confined process for each session, top, status and metrics, and
 a device in software for machines without a GPU.")
set(CPACK_DEBIAN_SERVER_PACKAGE_DEPENDS
  "gpuwire-client (= ${PROJECT_VERSION}), libc6 (>= ${GPUWIRE_OLDEST_GLIBC}), adduser | systemd")
set(CPACK_DEBIAN_SERVER_PACKAGE_SUGGESTS "logrotate, prometheus, libucx0 (>= 1.13)")
set(server_scripts ${CMAKE_CURRENT_LIST_DIR}/debian/server)
set(CPACK_DEBIAN_SERVER_PACKAGE_CONTROL_EXTRA ${server_scripts}/conffiles ${server_scripts}/postinst
  ${server_scripts}/prerm ${server_scripts}/postrm)

# The plugins are built for the installed version of Slurm; another major release refuses them.
set(CPACK_DEBIAN_SLURM_PACKAGE_NAME gpuwire-slurm)
set(CPACK_COMPONENT_SLURM_DESCRIPTION "CUDA programs on machines without a GPU: Slurm
 Lets Slurm hand out the GPUs of gpuwire servers: srun --gpuwire=2, licences for
 Slurm's queue, and a credential for each job that its prolog makes and its
 epilog takes back.")
set(CPACK_DEBIAN_SLURM_PACKAGE_DEPENDS
  "gpuwire-client (= ${PROJECT_VERSION}), libc6 (>= ${own_glibc}), python3 (>= 3.9)")
set(CPACK_DEBIAN_SLURM_PACKAGE_SUGGESTS "slurm-client, openssh-client")
set(CPACK_DEBIAN_SLURM_PACKAGE_CONTROL_EXTRA ${CMAKE_CURRENT_LIST_DIR}/debian/slurm/conffiles)

# For RHEL 9 and compatible distributions. The packages' requirements and provisions are declared here and not found by
# rpmbuild, which would declare libcuda.so.1 as a provision for packages that need NVIDIA's driver.
set(CPACK_RPM_COMPONENT_INSTALL ON)
set(CPACK_RPM_FILE_NAME RPM-DEFAULT)
set(CPACK_RPM_PACKAGE_LICENSE "Apache-2.0")
set(CPACK_RPM_PACKAGE_AUTOREQPROV OFF)
set(CPACK_RPM_COMPRESSION_TYPE xz)
# CPack has already listed the files, so rpmbuild may not strip, compress or link them.
set(CPACK_RPM_SPEC_MORE_DEFINE "%define __os_install_post %{nil}\n%define _build_id_links none")
# Folders of the system, which none of these packages owns.
set(CPACK_RPM_EXCLUDE_FROM_AUTO_FILELIST_ADDITION /etc/logrotate.d /usr/lib/systemd /usr/lib/systemd/system
  /usr/lib/sysusers.d /usr/share/man /usr/share/man/man1 /usr/share/man/man5 /usr/share/bash-completion
  /usr/share/bash-completion/completions /usr/share/zsh /usr/share/zsh/vendor-completions /usr/share/fish
  /usr/share/fish/vendor_completions.d)
set(rpm_scripts ${CMAKE_CURRENT_LIST_DIR}/rpm)
set(CPACK_RPM_CLIENT_PACKAGE_NAME gpuwire-client)
set(CPACK_RPM_CLIENT_PACKAGE_SUMMARY "CUDA programs on machines without a GPU: client")
set(CPACK_RPM_CLIENT_PACKAGE_REQUIRES "glibc >= ${GPUWIRE_OLDEST_GLIBC}")
set(CPACK_RPM_CLIENT_PACKAGE_SUGGESTS ucx)
set(CPACK_RPM_CLIENT_USER_FILELIST "%config(noreplace) /etc/gpuwire/client.toml")
set(CPACK_RPM_CLIENT_PRE_UNINSTALL_SCRIPT_FILE ${rpm_scripts}/client_preun.sh)
set(CPACK_RPM_SERVER_PACKAGE_NAME gpuwire-server)
set(CPACK_RPM_SERVER_PACKAGE_SUMMARY "CUDA programs on machines without a GPU: server")
set(CPACK_RPM_SERVER_PACKAGE_REQUIRES "gpuwire-client = ${PROJECT_VERSION}, glibc >= ${GPUWIRE_OLDEST_GLIBC}, systemd")
set(CPACK_RPM_SERVER_PACKAGE_SUGGESTS "logrotate, ucx")
set(CPACK_RPM_SERVER_USER_FILELIST "%config(noreplace) /etc/gpuwire/server.toml"
  "%config(noreplace) /etc/logrotate.d/gpuwire-server")
set(CPACK_RPM_SERVER_POST_INSTALL_SCRIPT_FILE ${rpm_scripts}/server_post.sh)
set(CPACK_RPM_SERVER_PRE_UNINSTALL_SCRIPT_FILE ${rpm_scripts}/server_preun.sh)
set(CPACK_RPM_SERVER_POST_UNINSTALL_SCRIPT_FILE ${rpm_scripts}/server_postun.sh)

# In one folder, for machines without a package manager: `cpack -G TGZ`.
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_CURRENT_LIST_DIR}/per_generator.cmake)

include(CPack)
