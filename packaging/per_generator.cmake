# Settings of the tarballs and of the RPM packages; cpack reads this file for each generator.
set(CPACK_STRIP_FILES OFF)
if(CPACK_GENERATOR STREQUAL "TGZ")
  # GPUWIRE_TARBALL: client, or server, which contains the client; a relocatable folder.
  if(GPUWIRE_TARBALL STREQUAL "server")
    set(CPACK_COMPONENTS_ALL client server)
  else()
    set(GPUWIRE_TARBALL client)
    set(CPACK_COMPONENTS_ALL client)
  endif()
  set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
  set(CPACK_STRIP_FILES ON)
  set(CPACK_SET_DESTDIR OFF)
  set(CPACK_PACKAGING_INSTALL_PREFIX "")
  set(CPACK_INCLUDE_TOPLEVEL_DIRECTORY ON)
  set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
  # The folder in it, too.
  set(CPACK_PACKAGE_FILE_NAME "gpuwire-${GPUWIRE_TARBALL}-${CPACK_PACKAGE_VERSION}-x86_64")
  set(CPACK_ARCHIVE_FILE_NAME ${CPACK_PACKAGE_FILE_NAME})
elseif(CPACK_GENERATOR STREQUAL "RPM")
  # Not for Slurm, whose plugins fit only the Debian release of the build.
  set(CPACK_COMPONENTS_ALL client server)
  set(CPACK_STRIP_FILES ON)
endif()
